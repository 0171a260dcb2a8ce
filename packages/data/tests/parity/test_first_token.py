# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The first token of a text: `Pretrained` and AutoTokenizer on the same directory."""

import itertools
import json

import pytest
import tokenizers
from tokenizers import decoders, pre_tokenizers, processors

from dovetail_data import Pretrained, Text, jsonl, train_bpe, write

pytestmark = pytest.mark.parity

CLASSES = (
    "LlamaTokenizerFast",
    "GemmaTokenizerFast",
    "Qwen2TokenizerFast",
    "PreTrainedTokenizerFast",
    "GPT2TokenizerFast",
)
BYTES = processors.ByteLevel(trim_offsets=False)


def template(single: str) -> processors.TemplateProcessing:
    return processors.TemplateProcessing(single=single, special_tokens=[("<s>", 1), ("</s>", 2)])


PROCESSORS = {
    "none": None,
    "bos": template("<s> $A"),
    "plain": template("$A"),
    "bos and eos": template("<s> $A </s>"),
    "eos": template("$A </s>"),
    "bytes": BYTES,
    "bytes, bos": processors.Sequence([BYTES, template("<s> $A")]),
    "bos, bytes": processors.Sequence([template("<s> $A"), BYTES]),
    "bert": processors.BertProcessing(("</s>", 2), ("<s>", 1)),
}


@pytest.fixture(scope="module")
def byte_level():
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<unk>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(["to be or not to be"] * 9, trainer)
    return made


def first_of_theirs(directory) -> int | None:
    """The ids before the text's own, which do not depend on the post_processor."""
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(directory)
    own = theirs("to be", add_special_tokens=False).input_ids
    whole = theirs("to be").input_ids
    starts = [i for i in range(len(whole)) if whole[i : i + len(own)] == own]
    assert starts[0] <= 1
    return whole[0] if starts[0] else None


@pytest.mark.parametrize("model_type", [None, "llama", "qwen2", "gemma3_text", "deepseek_v3"])
@pytest.mark.parametrize("name", PROCESSORS)
def test_the_first_token_is_theirs(byte_level, tmp_path, name, model_type):
    byte_level.post_processor = PROCESSORS[name]
    byte_level.save(str(tmp_path / "tokenizer.json"))
    if model_type is not None:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    for kind, adds in itertools.product(CLASSES, (None, True, False)):
        config = {"tokenizer_class": kind, "bos_token": "<s>", "eos_token": "</s>"}
        config |= {} if adds is None else {"add_bos_token": adds}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        assert Pretrained(tmp_path).bos_id == first_of_theirs(tmp_path), (kind, adds)


def test_the_files_of_train_bpe_begin_a_text_alike(tmp_path):
    ours = train_bpe(["to be or not to be"] * 9, tmp_path, vocab_size=300)
    assert ours.bos_id == first_of_theirs(tmp_path) == 0


@pytest.mark.parametrize("processor", ["bos", "eos"])
def test_the_tokenizer_of_a_corpus_begins_a_text_alike(byte_level, tmp_path, processor):
    byte_level.post_processor = PROCESSORS[processor]
    (tmp_path / "in").mkdir()
    byte_level.save(str(tmp_path / "in" / "tokenizer.json"))
    (tmp_path / "in.jsonl").write_text('{"text": "to be"}\n')
    encoder = Text(Pretrained(tmp_path / "in"))
    corpus = write(jsonl(tmp_path / "in.jsonl"), tmp_path / "out", encoder=encoder)
    first = first_of_theirs(tmp_path / "out")
    assert corpus.tokenizer.bos_id == first
    assert (corpus[0]["tokens"][0] == 1) == (first == 1)
