# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import types

import numpy as np
import pytest

from dovetail_train.eval.text import TextEncoder


class Words:
    """A tokenizer like those of `dovetail_data`: one id per word with the space before it."""

    def __init__(self, *, bos_id=1):
        self.bos_id, self.eos_id = bos_id, 2
        self.names = ["", "<s>", "</s>"]

    def _id(self, piece):
        if piece not in self.names:
            self.names.append(piece)
        return self.names.index(piece)

    def encode(self, texts):
        return [types.SimpleNamespace(ids=np.array(self._ids(text), np.int32)) for text in texts]

    def _ids(self, text):
        pieces = text.replace(" ", "\0 ").split("\0")
        return [self._id(piece) for piece in pieces if piece]

    def decode(self, ids):
        return "".join(self.names[i] for i in ids if i > 2)


class TheirWords(Words):
    """The same with the interface of `transformers`."""

    def __init__(self, *, bos_token_id=1, eos_token_id=2):
        super().__init__()
        del self.bos_id, self.eos_id
        self.bos_token_id, self.eos_token_id = bos_token_id, eos_token_id

    def encode(self, text, *, add_special_tokens=True):
        begun = [1] if text.startswith("<s>") else []
        start = [self.bos_token_id] if add_special_tokens else []
        return start + begun + self._ids(text.removeprefix("<s>"))

    def decode(self, token_ids, *, skip_special_tokens=False):
        return "".join(self.names[i] for i in token_ids if i > 2 or not skip_special_tokens)


@pytest.mark.parametrize("make", [Words, TheirWords])
def test_a_text_begins_as_training_did_unless_told(make):
    assert TextEncoder(make()).encode("one two") == [1, 3, 4]
    assert TextEncoder(make(), bos=False).encode("one two") == [3, 4]
    assert TextEncoder(make(), bos=True).encode("one two") == [1, 3, 4]
    assert TextEncoder(make(), bos=True).encode("one two", bos=False) == [3, 4]


def test_a_tokenizer_without_begin_of_text_adds_none():
    encoder = TextEncoder(Words(bos_id=None))
    assert encoder.encode("one two") == [3, 4]
    assert encoder.prefix == 2
    assert TextEncoder(TheirWords(bos_token_id=None)).prefix == 2


def test_begin_of_text_that_is_written_is_not_doubled():
    assert TextEncoder(TheirWords()).encode("<s>one") == [1, 3]
    assert TextEncoder(TheirWords(), bos=True).encode("<s>one") == [1, 3]


@pytest.mark.parametrize("make", [Words, TheirWords])
def test_spaces_before_a_continuation_belong_to_it(make):
    encoder = TextEncoder(make())
    split = encoder.pair("one two", " three")
    assert split == ([1, 3, 4], [5])
    assert encoder.pair("one two ", "three") == split
    assert encoder.decode(split[0] + split[1]) == "one two three"


@pytest.mark.parametrize("make", [Words, TheirWords])
def test_an_empty_context_is_the_prefix(make):
    assert TextEncoder(make()).pair("", "one two") == ([1], [3, 4])
    assert TextEncoder(make(), bos=False).pair("", "one two") == ([1], [3, 4])
    # A context of spaces alone is empty without them.
    assert TextEncoder(make(), bos=False).pair(" ", "one") == ([1], [3])


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_tokenizer_is_refused():
    with pytest.raises(TypeError, match=r"must have encode, decode.*got object; pass one of dov"):
        TextEncoder(object())


def test_a_tokenizer_without_a_prefix_is_refused():
    neither = TheirWords(bos_token_id=None, eos_token_id=None)
    with pytest.raises(ValueError, match=r"must have the id.*begin-of-text=None.*pass bos=False"):
        TextEncoder(neither)
    with pytest.raises(ValueError, match=r"begin-of-text=None, end-of-text=2 for bos=True; set"):
        TextEncoder(Words(bos_id=None), bos=True)
