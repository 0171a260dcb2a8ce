# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import numpy as np

from dovetail_data import Bytes, Text


def test_bos_and_eos_stand_around_the_text():
    first, second = Text(Bytes())([{"text": "hé"}, {"text": "x"}])
    assert first["tokens"].dtype == np.int32
    assert first["tokens"].tolist() == [256, 0x68, 0xC3, 0xA9, 257]
    assert second["tokens"].tolist() == [256, 0x78, 257]


def test_without_a_bos_the_text_begins():
    tokenizer = Bytes()
    tokenizer.bos_id = None
    assert Text(tokenizer)([{"text": "x"}])[0]["tokens"].tolist() == [0x78, 257]


def test_an_empty_text_is_dropped_in_its_place():
    encoded = Text(Bytes())([{"text": "a"}, {"text": ""}, {"text": "b"}])
    assert [array is None for array in encoded] == [False, True, False]


def test_the_fingerprint_follows_the_tokenizer(bpe):
    assert Text(Bytes()).fingerprint == Text(Bytes()).fingerprint
    assert Text(Bytes()).fingerprint != Text(bpe).fingerprint
