# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import tracemalloc

import numpy as np
import pytest

from dovetail_data import Bytes, Text


def test_bos_and_eos_stand_around_the_text():
    first, second = Text(Bytes())([{"text": "hé"}, {"text": "x"}])
    assert first.arrays["tokens"].dtype == np.int32
    assert (first.text_bytes, second.text_bytes) == (3, 1)
    assert first.arrays["tokens"].tolist() == [256, 0x68, 0xC3, 0xA9, 257]
    assert second.arrays["tokens"].tolist() == [256, 0x78, 257]


def test_without_a_bos_the_text_begins():
    tokenizer = Bytes()
    tokenizer.bos_id = None
    assert Text(tokenizer)([{"text": "x"}])[0].arrays["tokens"].tolist() == [0x78, 257]


def test_an_empty_text_is_dropped_in_its_place():
    encoded = Text(Bytes())([{"text": "a"}, {"text": ""}, {"text": "b"}])
    assert [array is None for array in encoded] == [False, True, False]


def test_the_fingerprint_follows_the_tokenizer(bpe):
    assert Text(Bytes()).fingerprint == Text(Bytes()).fingerprint
    assert Text(Bytes()).fingerprint != Text(bpe).fingerprint


@pytest.mark.parametrize(
    "record, message",
    [
        ({"body": "a", "id": 3}, "under field='text': got fields ['body', 'id'], there NoneType."),
        ({"text": 7}, "under field='text': got fields ['text'], there int. Pass Text(field=...)"),
        ({"text": "né\ud800x"}, "without lone surrogates: got '\\ud800' at character 2. Mend"),
    ],
)
def test_what_holds_no_text_is_corrupt_in_its_place(record, message):
    first, second, third = Text(Bytes())([{"text": "a"}, record, {"text": "b"}])
    assert message in second.error
    assert first.arrays["tokens"].tolist() == [256, 0x61, 257]
    assert third.arrays["tokens"].tolist() == [256, 0x62, 257]


def test_another_field():
    encoder = Text(Bytes(), field="body")
    (document,) = encoder([{"text": "no", "body": "yes"}])
    assert document.arrays["tokens"].tolist() == [256, *b"yes", 257]
    assert encoder.fingerprint != Text(Bytes()).fingerprint


@pytest.mark.parametrize("letters", ["a", "é", "日a"])
@pytest.mark.parametrize("name", ["bytes", "bpe", "foreign"])
def test_a_long_text_is_encoded_in_pieces_with_the_same_ids(bpe, monkeypatch, name, letters):
    class Foreign:
        """A tokenizer of the user's own, without pieces."""

        vocab_size, bos_id, eos_id, fingerprint = 258, None, 257, "foreign"

        def encode(self, texts):
            return Bytes().encode(texts)

        def decode(self, ids):
            return Bytes().decode(ids)

    monkeypatch.setattr("dovetail_data.tokenizing.tokenizer.SLICE_CHARACTERS", 2000)
    monkeypatch.setattr("dovetail_data.encode.text.SLICE_CHARACTERS", 2000)
    encoder = Text({"bytes": Bytes(), "bpe": bpe, "foreign": Foreign()}[name])
    records = [{"text": text} for text in ("x", letters * 30_000 + " end", "y", "self. " * 5000)]
    whole = encoder(records)
    monkeypatch.setattr("dovetail_data.encode.text.LONG_CHARACTERS", 5000)
    for expected, document in zip(whole, encoder(records), strict=True):
        np.testing.assert_array_equal(document.arrays["tokens"], expected.arrays["tokens"])
        assert document.text_bytes == expected.text_bytes
    long, short = encoder(records)[1], encoder(records)[0]
    assert (long.arrays["tokens"].dtype, short.arrays["tokens"].dtype) == (np.uint16, np.int32)


def test_a_long_text_with_a_lone_surrogate_is_corrupt(monkeypatch):
    monkeypatch.setattr("dovetail_data.encode.text.SLICE_CHARACTERS", 10)
    (result,) = Text(Bytes())([{"text": "é" * 25 + "\ud800"}])
    assert "got '\\ud800' at character 25." in result.error


def test_the_memory_of_a_long_text_is_bounded():
    text = "é lorem ipsum " * 500_000
    encoder = Text(Bytes())
    tracemalloc.start()
    encoder([{"text": text}])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3.5 * len(text.encode())  # 2 bytes for each id, and the room to grow
