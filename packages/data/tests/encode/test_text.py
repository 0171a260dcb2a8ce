# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
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
