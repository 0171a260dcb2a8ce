# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import re
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_data.record import Codec, Field, ids


@pytest.mark.parametrize("vocab_size, format", [(1 << 16, "H"), ((1 << 16) + 1, "I")])
def test_ids_alone_are_the_whole_record(vocab_size, format):
    numbers = [0, 258, vocab_size - 1]
    codec = Codec({"tokens": ids(vocab_size)})
    record = codec.encode({"tokens": np.array(numbers, np.int32)})
    assert record == struct.pack(f"<3{format}", *numbers)
    assert codec.view(record)["tokens"].tolist() == numbers
    assert codec.ids == ["tokens"]


def test_several_fields_follow_their_shapes():
    codec = Codec(
        {"tokens": ids(300), "mask": Field(dtype="|u1"), "label": Field(dtype="<i4", ndim=0)}
    )
    arrays = {
        "tokens": np.array([7, 299, 0], np.int64),
        "mask": np.array([0, 1], np.uint8),
        "label": np.array(-5, np.int32),
    }
    record = codec.encode(arrays)
    assert record == struct.pack("<2I 3H 2B i", 3, 2, 7, 299, 0, 0, 1, -5)
    read = codec.view(record)
    assert {name: array.tolist() for name, array in read.items()} == {
        "tokens": [7, 299, 0],
        "mask": [0, 1],
        "label": -5,
    }
    assert codec.ids == ["tokens"]


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_any_arrays_come_back(data):
    dtypes = ["<u2", "<u4", "|u1", "<i4", "<f4"]
    layout, arrays = {}, {}
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    for i in range(data.draw(st.integers(1, 4))):
        dtype = data.draw(st.sampled_from(dtypes))
        shape = data.draw(st.lists(st.integers(0, 4), max_size=3))
        layout[f"field{i}"] = Field(dtype=dtype, ndim=len(shape))
        arrays[f"field{i}"] = rng.integers(0, 200, shape).astype(dtype)
    codec = Codec(layout)
    read = codec.view(codec.encode(arrays))
    assert set(read) == set(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(read[name], array)
        assert read[name].dtype == array.dtype
        assert read[name].shape == array.shape
        assert not read[name].flags.writeable


@pytest.mark.parametrize(
    "array, message",
    [
        (np.array([0, 300]), "each value of tokens must lie in [0, 299]: got 300. Mend"),
        (np.array([-1, 2]), "each value of tokens must lie in [0, 299]: got -1. Mend"),
        (np.array([0.5]), "tokens must have ndim=1 and a dtype that uint16 holds: got float64[1]"),
        (np.array([[1]]), "tokens must have ndim=1 and a dtype that uint16 holds: got int64[1, 1]"),
        (np.array([True]), "a dtype that uint16 holds: got bool[1]. Cast it"),
    ],
)
def test_what_the_layout_does_not_hold_is_refused(array, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Codec({"tokens": ids(300)}).encode({"tokens": array})


def test_a_value_that_the_type_does_not_hold_is_refused():
    codec = Codec({"label": Field(dtype="<i4", ndim=0)})
    with pytest.raises(ValueError, match=re.escape(f"got {1 << 31}. Mend")):
        codec.encode({"label": np.array(1 << 31)})
    assert codec.view(codec.encode({"label": np.array(-(1 << 31))}))["label"] == -(1 << 31)


def test_fields_must_be_those_of_the_layout():
    message = "a document must have the fields ['tokens']: got ['mask', 'tokens']. Return"
    with pytest.raises(ValueError, match=re.escape(message)):
        Codec({"tokens": ids(3)}).encode({"tokens": np.array([1]), "mask": np.array([1])})
    with pytest.raises(ValueError, match=re.escape("a layout must have a field: got {}. Name")):
        Codec({})
