# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Exports of tuning runs, opened by transformers and PEFT: same ids, logits and rewards."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dovetail_data import Contrast, Pretrained
from dovetail_models import bert, init, load, save
from dovetail_stack import record_jobs, settings
from dovetail_stack.recipes import adapters, reward
from dovetail_stack.recipes.dialogue import template_of
from dovetail_stack.recipes.embedding import opened
from dovetail_stack.recipes.record_options import Adapting, Dialogue
from dovetail_tune import RewardModel

pytestmark = [
    pytest.mark.parity,
    # PEFT asks a model of transformers for an old name.
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
]

TOKENS = np.random.default_rng(0).integers(4, 288, (2, 11)).astype(np.int32)
MESSAGES = [
    {"role": "user", "content": "say red one"},
    {"role": "assistant", "content": "one red!"},
]
# Logits of one layer in float32, by two libraries that sum in other orders.
CLOSE = {"rtol": 0, "atol": 2e-4}


def _moved(model, kind, seed=1):
    rng = np.random.default_rng(seed)
    state = nnx.state(model, kind)
    nnx.update(
        model, jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape) * 0.3, x.dtype), state)
    )
    return model


def _torch_logits(model, tokens):
    import torch

    with torch.no_grad():
        return model(torch.tensor(tokens, dtype=torch.long)).logits.numpy()


class _NoneHeldOut:
    """A corpus without documents: the export then has the end ids of its base."""

    fields = ("tokens", "mask")

    def __len__(self):
        return 0


@pytest.fixture(scope="module", params=[None, "int8"])
def exported(request, talker, tmp_path_factory):
    """(the run's directory, the trained model, its settings) with adapters that are not 0."""
    out = tmp_path_factory.mktemp("run")
    options = {"records": ("x",), "model": str(talker), "lora_rank": 2, "length": 32}
    options["quantize"] = request.param
    run = settings.create(settings.Chat, options)
    model = _moved(adapters.start(talker, run.training), nnx.LoRAParam)
    recipe = record_jobs.outlined(run, jax.make_mesh((1,), ("data",)))
    record_jobs._export(run, recipe, model, out, _NoneHeldOut())
    return out, model, run


def test_transformers_loads_the_merged_model(exported):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    out, model, _ = exported
    theirs = AutoModelForCausalLM.from_pretrained(out / "hf")
    np.testing.assert_allclose(_torch_logits(theirs, TOKENS), model(TOKENS), **CLOSE)
    words = AutoTokenizer.from_pretrained(out / "hf")
    text = words.apply_chat_template(MESSAGES, tokenize=False)
    template = template_of(out / "hf", Dialogue())
    assert text == template.render(MESSAGES).text


def test_peft_loads_the_adapters(exported, talker):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    out, model, run = exported
    base = AutoModelForCausalLM.from_pretrained(talker)
    theirs = _torch_logits(PeftModel.from_pretrained(base, out / "peft"), TOKENS)
    if run.training.quantize is None:
        np.testing.assert_allclose(theirs, model(TOKENS), **CLOSE)
    else:  # PEFT adds them to the float weights, and int8 rounds to 1/127 of a column's maximum
        assert 1e-4 < np.abs(theirs - model(TOKENS)).mean() < 0.02 * np.abs(theirs).max()


@pytest.mark.parametrize("pad", [True, False])
def test_transformers_loads_a_reward_model(talker, tmp_path, pad):
    import shutil

    import torch
    from transformers import AutoModelForSequenceClassification

    like = tmp_path / "like"
    shutil.copytree(talker, like)
    if pad:  # an id of its own
        file = like / "tokenizer.json"
        keys = json.loads(file.read_text())
        keys["added_tokens"].append({**keys["added_tokens"][0], "id": 287, "content": "<|pad|>"})
        keys["model"]["vocab"] = {k: v for k, v in keys["model"]["vocab"].items() if v != 287}
        keys["model"]["vocab"]["<|pad|>"] = 287
        file.write_text(json.dumps(keys))
        config = json.loads((like / "tokenizer_config.json").read_text())
        (like / "tokenizer_config.json").write_text(json.dumps({**config, "pad_token": "<|pad|>"}))
    model = reward.headed(load(talker), Adapting())
    assert isinstance(model, RewardModel)
    reward.save_classifier(model, tmp_path / "hf", like=like)
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "hf")
    assert theirs.config.num_labels == 1
    lengths = (11, 7)
    ids = TOKENS % 280
    batch = {"tokens": ids[:, :-1], "targets": ids[:, 1:]}
    batch["segment_ids"] = (np.arange(10) < np.array(lengths)[:, None] - 1).astype(np.int32)
    ours = model.scores(batch)
    with torch.no_grad():
        if pad:
            whole = np.where(np.arange(11) < np.array(lengths)[:, None], ids, 287)
            mask = torch.tensor((whole != 287).astype(np.int64))
            wanted = theirs(torch.tensor(whole, dtype=torch.long), attention_mask=mask).logits[:, 0]
        else:
            rows = [
                torch.tensor(ids[i : i + 1, :n], dtype=torch.long) for i, n in enumerate(lengths)
            ]
            wanted = torch.cat([theirs(row).logits[:, 0] for row in rows])
    np.testing.assert_allclose(ours, wanted.numpy(), **CLOSE)


def test_the_ids_of_a_sentence_are_those_of_transformers(tmp_path):
    """A BERT tokenizer, whose ends are [CLS] and [SEP]."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import AutoTokenizer

    words = {w: i for i, w in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "red", "one", "two"])}
    made = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    made.save(str(tmp_path / "tokenizer.json"))
    keys = {"cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]", "pad_token": "[PAD]"}
    keys["tokenizer_class"] = "PreTrainedTokenizerFast"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(keys))
    sizes = {"embed": 16, "depth": 1, "heads": 2, "mlp": 24, "max_length": 16}
    save(init(bert(vocab_size=7, **sizes), seed=0), tmp_path / "hf", like=tmp_path)
    _, tokenizer = opened(tmp_path / "hf", length=16)
    (document,) = Contrast(tokenizer, query="q", positive="p")([{"q": "red two", "p": "one"}])
    theirs = AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert document.arrays["q"].tolist() == theirs("red two")["input_ids"]
    assert document.arrays["p"].tolist() == theirs("one")["input_ids"]


def test_the_tokenizer_of_a_run_is_that_of_its_export(talker):
    from transformers import AutoTokenizer

    template = template_of(talker, Dialogue())
    (ours,) = Pretrained(talker).encode_with_specials([template.render(MESSAGES).text])
    theirs = AutoTokenizer.from_pretrained(talker)
    ids = theirs.apply_chat_template(MESSAGES, tokenize=True)
    assert ours.ids.tolist() == list(ids["input_ids"] if hasattr(ids, "keys") else ids)
