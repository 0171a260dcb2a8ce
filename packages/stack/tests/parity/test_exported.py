# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""An exported run, opened by transformers: same ids, same greedy text."""

import itertools

import pytest

from dovetail_data import train_bpe
from dovetail_infer import Sampling
from dovetail_models import init, save
from dovetail_stack.recipes.engine import engine
from dovetail_stack.recipes.families import config_for
from dovetail_stack.recipes.options import Shape

pytestmark = pytest.mark.parity

TEXTS = ["def read_file(path):\n    return open(path).read()\n" * 20, "héllo wörld 😀 " * 30]


# Sizes that differ from the command's, where a family takes them.
FAMILIES = {
    "llama": {"kv_heads": 2, "mlp": 48},
    "gemma3": {"kv_heads": 2, "mlp": 48},
    "mixtral": {"kv_heads": 2, "experts": 4, "expert_mlp": 24},
    "deepseek_v3": {"mlp": 48, "experts": 4, "expert_mlp": 24},
}


@pytest.fixture(scope="module", params=FAMILIES)
def exported(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("exported")
    tokenizer = train_bpe(TEXTS, directory / "tokenizer.json", vocab_size=320)
    shape = Shape(family=request.param, embed=32, depth=2, heads=4, **FAMILIES[request.param])
    model = init(config_for(shape, tokenizer, length=64), seed=3)
    save(model, directory / "hf")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (directory / "hf" / name).write_bytes((directory / name).read_bytes())
    return directory / "hf", model, tokenizer


def test_the_tokenizer_gives_the_same_ids_and_begins_a_text_as_training_did(exported):
    from transformers import AutoTokenizer

    directory, _, tokenizer = exported
    theirs = AutoTokenizer.from_pretrained(directory)
    for text in TEXTS:
        (encoding,) = tokenizer.encode([text])
        assert theirs(text)["input_ids"] == [tokenizer.bos_id, *encoding.ids.tolist()]
    assert (theirs.bos_token_id, theirs.eos_token_id) == (tokenizer.bos_id, tokenizer.eos_id)


def test_greedy_text_is_the_same(exported):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    directory, model, tokenizer = exported
    theirs = AutoModelForCausalLM.from_pretrained(directory)
    words = AutoTokenizer.from_pretrained(directory)
    inputs = words("def read_", return_tensors="pt")
    with torch.no_grad():
        ids = theirs.generate(**inputs, max_new_tokens=24, do_sample=False)[0].tolist()
    new = ids[inputs["input_ids"].shape[1] :]
    ended = list(itertools.takewhile(lambda i: i != tokenizer.eos_id, new))
    with engine(model, tokenizer=tokenizer, max_rows=1) as opened:
        (ours,) = opened.generate(["def read_"], Sampling(max_tokens=24, temperature=0))
    assert ours.text == tokenizer.decode(ended)
    assert theirs.generation_config.eos_token_id == tokenizer.eos_id
