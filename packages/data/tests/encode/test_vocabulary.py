# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json
import pickle

import numpy as np
import pytest

from dovetail_data import Bytes, Corrupt, Pretrained, Text, check_ends, foreign_id, within

WORD = "<image_soft_token>"


@pytest.fixture(scope="module")
def larger(bpe, tmp_path_factory):
    """A tokenizer with one token more than `bpe`, an ordinary word, as Gemma 3 1B has."""
    content = json.loads(bpe.content)
    added = {"id": bpe.vocab_size, "content": WORD, "special": False}
    content["added_tokens"].append({**content["added_tokens"][0], **added})
    file = tmp_path_factory.mktemp("larger") / "tokenizer.json"
    file.write_text(json.dumps(content))
    tokenizer = Pretrained(file)
    assert tokenizer.vocab_size == bpe.vocab_size + 1
    return tokenizer


def test_an_id_without_a_row_is_named(larger):
    rows = larger.vocab_size - 1
    assert foreign_id([], larger, vocab_size=rows) == ""
    assert foreign_id([5, rows - 1], larger, vocab_size=rows) == ""
    assert foreign_id(np.array([5, rows]), larger, vocab_size=rows) == f"id {rows} ({WORD!r})"
    assert foreign_id([1], larger, vocab_size=1) == "id 1 ('<|eos|>')"  # it decodes to nothing
    assert foreign_id([257], Bytes(), vocab_size=257) == "id 257"


def test_bos_and_eos_must_have_rows():
    check_ends(Bytes(), vocab_size=258)
    with pytest.raises(
        ValueError, match=r"must have a row .* got id 257 as eos_id for 257 rows: use"
    ):
        check_ends(Bytes(), vocab_size=257)


def test_a_record_with_an_id_without_a_row_is_reported(larger):
    plain, rows = Text(larger), larger.vocab_size - 1
    assert within(plain, vocab_size=rows + 1) is plain
    assert within(plain, vocab_size=None) is plain
    encoder = pickle.loads(pickle.dumps(within(plain, vocab_size=rows)))
    assert encoder.layout["tokens"].vocab_size == rows
    kept, wrong, empty = encoder([{"text": "def"}, {"text": f"a{WORD}b"}, {"text": ""}])
    assert kept.arrays["tokens"].tolist() == plain([{"text": "def"}])[0].arrays["tokens"].tolist()
    assert isinstance(wrong, Corrupt)
    assert f"the model's {rows} rows, got id {rows} ({WORD!r}) in tokens: leave" in wrong.error
    assert empty is None


def test_stored_corpora_keep_their_fingerprint():
    printed = within(Text(Bytes()), vocab_size=257).fingerprint
    assert printed == "0d45212fe7b5379ec28e2a546d3051ddd642eaa699b58ddd4aafaece51f7d380"
