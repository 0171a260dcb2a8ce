# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json
import random

import numpy as np
import pytest
import tokenizers

from dovetail_data import Pretrained
from dovetail_data.tokenizing.slices import is_local, slices

# As Llama 3's and Qwen's: letters with one character before them, line ends in runs.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WORDS = [
    *(
        "the",
        " naïve",
        " l'été",
        "don't",
        " I'll",
        "日本語",
        "😀",
        "e\u0301",
        "\u0301",
        "12345",
        " 7",
    ),
    *(" ", "  ", "\n", "\n\n", "\r\n", "\t", "    \n", "...", " !?", "<tool>", "<to", "ol>", "_"),
    *("supercalifragilistic" * 3, "-" * 40, " " * 50),
]


def split(pattern, **options):
    chosen = {"behavior": "isolated", **options}
    return tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), **chosen)


def byte_level(**options):
    chosen = {"add_prefix_space": False, **options}
    return tokenizers.pre_tokenizers.ByteLevel(**chosen)


def sequence(*steps):
    return tokenizers.pre_tokenizers.Sequence(list(steps))


LOCAL = {
    "gpt": byte_level(),
    "llama": sequence(split(PATTERN), byte_level(use_regex=False)),
    "digits": sequence(tokenizers.pre_tokenizers.Digits(individual_digits=True), byte_level()),
}


@pytest.fixture(scope="module")
def trained():
    """trained(pre_tokenizer, normalizer): a BPE of WORDS, with an added token that is a word."""

    def make(pre_tokenizer, normalizer=None):
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizer
        if normalizer is not None:
            tokenizer.normalizer = normalizer
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=420,
            special_tokens=["<eos>"],
            initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        rng = random.Random(0)
        tokenizer.train_from_iterator((text_of(rng, 50) for _ in range(50)), trainer)
        tokenizer.add_tokens(["<tool>"])
        return tokenizer

    return make


def text_of(rng, words):
    return "".join(rng.choices(WORDS, k=words))


@pytest.mark.parametrize("normalizer", [None, tokenizers.normalizers.NFC()], ids=["", "nfc"])
@pytest.mark.parametrize("name", LOCAL)
def test_slices_have_the_ids_of_the_whole(trained, monkeypatch, name, normalizer):
    monkeypatch.setattr("dovetail_data.tokenizing.slices._MARGIN", 16)
    tokenizer = trained(LOCAL[name], normalizer)
    assert is_local(tokenizer.to_str())
    rng = random.Random(1)
    several = 0
    for size in [40] * 40 + [100] * 40 + [333] * 20:
        text = text_of(rng, 120)
        pieces = list(slices(tokenizer, text, size))
        whole = tokenizer.encode(text, add_special_tokens=False).ids
        assert np.concatenate(pieces).tolist() == whole
        several += len(pieces) > 2
    assert several > 60


def test_a_word_longer_than_a_slice_is_encoded_whole(trained):
    tokenizer = trained(LOCAL["gpt"])
    for text in ("x" * 9000, "x" * 9000 + " y" * 3000, "y " * 3000 + "x" * 9000):
        whole = tokenizer.encode(text, add_special_tokens=False).ids
        assert np.concatenate(list(slices(tokenizer, text, 2000))).tolist() == whole


def test_an_empty_text_has_no_slice(trained):
    assert list(slices(trained(LOCAL["gpt"]), "", 2000)) == []


OTHERS = {
    "a prefix": byte_level(add_prefix_space=True),
    "metaspace": tokenizers.pre_tokenizers.Metaspace(),
    "a look behind": split(r"(?<=a)b|\w+"),
    "a word boundary": split(r"\bword\b|\w+"),
    "an anchor": split(r"^a|\w+"),
    "a look ahead of any length": split(r"a(?=.*b)|\w+"),
    "a merge with the word before": split(r"\s+", behavior="merged_with_previous"),
    "the gaps": split(r"\s+", invert=True),
    "two scans": sequence(split(r"\p{N}{1,3}"), byte_level()),
    "a string": tokenizers.pre_tokenizers.Split(" ", "isolated"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_scans_are_not_local(trained, name):
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = OTHERS[name]
    assert not is_local(tokenizer.to_str())


def test_other_parts_of_a_tokenizer_are_not_local(trained):
    assert not is_local(trained(LOCAL["gpt"], tokenizers.normalizers.Prepend("_")).to_str())
    content = json.loads(trained(LOCAL["gpt"]).to_str())
    for change in (
        {"lstrip": True},
        {"rstrip": True},
        {"single_word": True},
        {"content": "x" * 2000},
    ):
        added = [{**content["added_tokens"][0], **change}]
        assert not is_local(json.dumps({**content, "added_tokens": added}))
    assert not is_local(json.dumps({**content, "pre_tokenizer": None}))


def test_a_tokenizer_that_is_not_local_reads_the_text_whole(trained, tmp_path, monkeypatch):
    monkeypatch.setattr("dovetail_data.tokenizing.tokenizer.SLICE_CHARACTERS", 2000)
    text = "the naïve " * 900
    for pre_tokenizer, pieces in ((LOCAL["gpt"], 8), (byte_level(add_prefix_space=True), 1)):
        trained(pre_tokenizer).save(str(tmp_path / "tokenizer.json"))
        tokenizer = Pretrained(tmp_path, eos="<eos>")
        read = list(tokenizer.encode_slices(text))
        assert (len(read) >= pieces, len(read) == 1) == (True, pieces == 1)
        np.testing.assert_array_equal(np.concatenate(read), tokenizer.encode([text])[0].ids)
