# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Pieces of ids: none lost, their texts together the text, a character never torn."""

import itertools
import json

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_data import Bytes, Pretrained
from dovetail_data.tokenizing.pieces import Reader

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


def read(tokenizer, ids):
    """The pieces of `ids`, all learnt, after a check that they hold all ids in order."""
    pieces = Reader(tokenizer).pieces(ids, [1.0] * len(ids))
    assert [token for piece in pieces for token in piece.ids] == list(ids)
    starts = np.cumsum([0, *(len(piece.ids) for piece in pieces)])[:-1]
    assert [piece.position for piece in pieces] == starts.tolist()
    return pieces


@pytest.mark.thorough
@settings(deadline=None)
@given(TEXTS)
def test_bytes_are_read_as_characters(text):
    pieces = read(Bytes(), list(text.encode()))
    assert [piece.text for piece in pieces] == list(text)
    assert [len(piece.ids) for piece in pieces] == [len(char.encode()) for char in text]


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_bytes_that_are_no_text_are_marked_and_lose_none_that_are(content):
    pieces = read(Bytes(), list(content))
    assert "".join(piece.text for piece in pieces) == content.decode("utf-8", errors="replace")


def test_what_is_cut_within_a_character():
    pieces = read(Bytes(), [*"é".encode()[1:], *b"a", *"日".encode()[:2]])
    assert [(piece.text, piece.ids) for piece in pieces] == [
        ("\ufffd", (0xA9,)),
        ("a", (0x61,)),
        ("\ufffd", (0xE6, 0x97)),
    ]


def test_a_replacement_character_of_the_text_itself():
    pieces = read(Bytes(), list("\ufffda".encode()))
    assert [piece.text for piece in pieces] == ["\ufffd", "a"]


def test_special_ids_have_their_names():
    pieces = read(Bytes(), [256, 97, 257, 257])
    assert [(piece.text, piece.special) for piece in pieces] == [
        ("<|bos|>", True),
        ("a", False),
        ("<|eos|>", True),
        ("<|eos|>", True),
    ]


def test_ids_of_one_character_with_another_mask_stand_alone():
    pieces = Reader(Bytes()).pieces([97, 0xC3, 0xA9, 0xC3, 0xA9], [0.0, 0.0, 1.0, 0.5, 0.5])
    assert [(piece.text, piece.ids, piece.position, piece.mask) for piece in pieces] == [
        ("a", (97,), 0, 0),
        ("\ufffd", (0xC3,), 1, 0),
        ("\ufffd", (0xA9,), 2, 1),
        ("é", (0xC3, 0xA9), 3, 0.5),
    ]


@settings(deadline=None, max_examples=60)
@given(text=TEXTS | st.text("dæ日 ef_return\n", max_size=200))
def test_byte_level_pieces_are_those_of_the_tokenizers_own_spans(bpe, text):
    (encoding,) = bpe.encode([text])
    pieces = read(bpe, encoding.ids.tolist())
    assert "".join(piece.text for piece in pieces) == text
    # Offsets of ids that share a character overlap: a piece begins behind all that came before.
    before = np.maximum.accumulate([0, *encoding.spans[:, 1]])
    starts = [
        start for (start, _), end in zip(encoding.spans, before, strict=False) if start >= end
    ]
    cuts = [*starts, len(text)]
    assert [piece.text for piece in pieces] == [text[a:b] for a, b in itertools.pairwise(cuts)]


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """A tokenizer as SentencePiece makes them: each word with its space, which decoding a word
    alone drops; bytes for what is no word."""
    vocabulary = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "▁a", "▁bc", "d"]
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.Unigram(
            [(word, -1.0) for word in vocabulary], unk_id=0, byte_fallback=True
        )
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    tokenizer.decoder = tokenizers.decoders.Sequence(
        [tokenizers.decoders.ByteFallback(), tokenizers.decoders.Metaspace()]
    )
    tokenizer.add_special_tokens(["<s>", "</s>"])
    path = tmp_path_factory.mktemp("words") / "tokenizer.json"
    tokenizer.save(str(path))
    assert [token["id"] for token in json.loads(path.read_text())["added_tokens"]] == [1, 2]
    return Pretrained(path)


def test_words_that_lose_their_space_alone(words):
    text = "a bc bcd a"
    (encoding,) = words.encode([text])
    pieces = read(words, [1, *encoding.ids.tolist(), 2])
    assert [piece.text for piece in pieces] == ["<s>", "a", " bc", " bc", "d", " a", "</s>"]


def test_a_long_text_that_cannot_be_halved(words):
    (encoding,) = words.encode(["a bc " * 50])
    assert words.decode(encoding.ids[1:2]) == "bc"
    pieces = read(words, encoding.ids.tolist())
    assert "".join(piece.text for piece in pieces) == words.decode(encoding.ids)
    assert {piece.text for piece in pieces[1:100]} == {" a", " bc"}


class Letters:
    """A tokenizer of the user's own, to which id 5 means nothing."""

    vocab_size, bos_id, eos_id, fingerprint = 6, None, 4, "letters"

    def encode(self, texts):
        raise AssertionError("not used")

    def decode(self, ids):
        return "".join("abcd"[i] for i in ids if i < 4)


def test_a_tokenizer_of_the_users_own():
    pieces = read(Letters(), [0, 5, 1, 4, 5, 4])
    assert [(piece.text, piece.ids, piece.special) for piece in pieces] == [
        ("a", (0, 5), False),
        ("b", (1,), False),
        ("eos", (4,), True),
        ("", (5,), False),
        ("eos", (4,), True),
    ]


def test_an_id_without_text_that_stands_alone_is_marked():
    pieces = Reader(Letters()).pieces([0, 5], [0.0, 1.0])
    assert [(piece.text, piece.ids) for piece in pieces] == [("a", (0,)), ("\ufffd", (5,))]


@settings(deadline=None)
@given(st.lists(st.integers(0, 257), max_size=80), st.integers(0, 1))
def test_any_ids_are_all_there(ids, weight):
    pieces = Reader(Bytes()).pieces(ids, [float(weight)] * len(ids))
    assert [token for piece in pieces for token in piece.ids] == ids
    assert all(piece.mask == weight for piece in pieces)
    for piece in pieces:
        assert piece.special == (piece.ids[0] >= 256)
