# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import re

import numpy as np
import pytest

from dovetail_data import check_batch


def in_order(*parts):
    return ".*".join(map(re.escape, parts))


def good():
    return {
        "tokens": np.array([[3, 1, 4, 1, 5], [9, 2, 0, 0, 0]], np.int32),
        "targets": np.array([[1, 4, 1, 5, 9], [2, 6, 0, 0, 0]], np.int32),
        "mask": np.array([[1, 1, 0.5, 1, 0], [1, 1, 0, 0, 0]], np.float32),
        "segment_ids": np.array([[1, 1, 1, 2, 3], [1, 1, 0, 0, 0]], np.int32),
        "positions": np.array([[0, 1, 2, 0, 0], [0, 1, 0, 0, 0]], np.int32),
    }


def test_a_batch_that_keeps_the_contract_passes():
    check_batch(good(), vocab_size=10)


@pytest.mark.parametrize(
    "name, at, value, parts",
    [
        ("tokens", (0, 2), 10, ["vocab_size=10", "got 10 at [0, 2]", "Use the tokenizer"]),
        ("targets", (1, 0), -1, ["vocab_size=10", "got -1 at [1, 0]", "Use the tokenizer"]),
        ("mask", (1, 3), 1.0, ["0 where segment_ids is 0", "got 1.0 at [1, 3]", "Set it to 0"]),
        ("mask", (0, 0), np.nan, ["finite", "got nan at [0, 0]", "Set it to 0"]),
        ("mask", (0, 0), -1.0, [">= 0", "got -1.0 at [0, 0]", "Set it to 0"]),
        ("segment_ids", (0, 4), 4, ["1, 2, ..", "got 4 at [0, 4]", "Number the documents"]),
        ("segment_ids", (0, 0), 2, ["1, 2, ..", "got 2 at [0, 0]", "Number the documents"]),
        (
            "segment_ids",
            (1, 4),
            1,
            ["rise behind a gap", "got 1 at [1, 4]", "Number the documents"],
        ),
        ("positions", (0, 3), 3, ["count 0, 1, ..", "got 3 at [0, 3]", "Restart it"]),
        ("positions", (0, 0), 1, ["count 0, 1, ..", "got 1 at [0, 0]", "Restart it"]),
    ],
)
def test_a_wrong_value_is_named(name, at, value, parts):
    batch = good()
    batch[name][at] = value
    with pytest.raises(ValueError, match=in_order(*parts)):
        check_batch(batch, vocab_size=10)


def test_a_corrupt_document_leaves_a_gap():
    batch = good()
    for name in ("segment_ids", "mask", "positions"):
        batch[name][0, 3] = 0  # where document 2 stood
    check_batch(batch, vocab_size=10)


def test_a_segment_does_not_go_on_behind_a_gap():
    batch = good()
    for name in ("segment_ids", "mask"):
        batch[name][0, 1] = 0
    with pytest.raises(ValueError, match=in_order("rise behind a gap", "got 1 at [0, 2]")):
        check_batch(batch, vocab_size=10)


def test_a_missing_field_is_named():
    batch = good()
    del batch["positions"]
    with pytest.raises(ValueError, match=r"must have the fields .* got .*Add 'positions'"):
        check_batch(batch, vocab_size=10)


@pytest.mark.parametrize("wrong", [np.zeros((2, 5), np.int64), np.zeros((2, 4), np.int32)])
def test_a_wrong_dtype_or_shape_is_named(wrong):
    batch = good() | {"targets": wrong}
    with pytest.raises(ValueError, match=r"must be int32\[B, S\].*targets=int.*Cast or reshape"):
        check_batch(batch, vocab_size=10)
