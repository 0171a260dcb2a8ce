# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""One token per byte."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dovetail_infer import Tokenizer
from dovetail_infer.testing import ByteTokenizer


@given(st.lists(st.text(max_size=20), max_size=3))
def test_texts_return(texts: list[str]) -> None:
    tokenizer = ByteTokenizer()
    encodings = tokenizer.encode(texts)
    assert [tokenizer.decode(e.ids) for e in encodings] == texts
    assert [e.ids for e in encodings] == [list(text.encode()) for text in texts]


@given(st.binary(max_size=20))
def test_invalid_bytes_become_replacement_characters(content: bytes) -> None:
    ids = np.frombuffer(content, np.uint8).astype("i4")
    assert ByteTokenizer().decode(ids) == content.decode(errors="replace")


def test_special_ids_add_nothing() -> None:
    tokenizer = ByteTokenizer()
    assert isinstance(tokenizer, Tokenizer)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.vocab_size) == (256, 257, 258)
    # A model may have more logits than the tokenizer has ids.
    assert tokenizer.decode([256, 0xC3, 257, 0xA9, 300]) == "é"
    assert tokenizer.decode_with_specials([256, 0xC3, 0xA9, 257, 300]) == "<|bos|>é<|eos|>"
