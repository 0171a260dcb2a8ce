# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Raw bytes of the protocol become arrays and back; sizes that do not fit are refused."""

import re
import struct

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail_serve.bundle.arrays import FORMAT_NAMES, STORED_AS
from dovetail_serve.errors import ExecutionError, RequestError
from dovetail_serve.serving.datatypes import (
    DATATYPES,
    OIP_NAMES,
    count,
    from_raw,
    oip_name,
    to_raw,
)

NUMERIC = [name for name in DATATYPES if name != "BYTES"]
# Codes of the struct module, an implementation of its own.
CODES = {"BOOL": "?", "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q"}
CODES |= {"INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q"}
CODES |= {"FP16": "e", "FP32": "f", "FP64": "d"}


def test_every_dtype_of_a_bundle_has_a_datatype():
    # Tensors of host functions alone may be of the last three: no program takes them.
    assert set(OIP_NAMES) == {*FORMAT_NAMES, *STORED_AS, "bytes", "int2", "uint2"}
    assert len(DATATYPES) == len(OIP_NAMES)
    assert [oip_name(dtype) for dtype in ("float32", "bytes", np.dtype(object))] == [
        "FP32",
        "BYTES",
        "BYTES",
    ]


@pytest.mark.parametrize("datatype", CODES)
def test_raw_bytes_are_those_of_struct(datatype):
    generator = np.random.default_rng(3)
    values = [int(v) for v in generator.integers(0, 2 if datatype == "BOOL" else 100, 15)]
    if datatype.startswith(("FP", "INT")):
        values = [-v for v in values]
    data = struct.pack(f"<15{CODES[datatype]}", *values)
    array = from_raw(datatype, (5, 3), data)
    assert array.dtype == DATATYPES[datatype]
    np.testing.assert_array_equal(array.astype("float64"), np.reshape(values, (5, 3)))
    assert to_raw(array) == data


@pytest.mark.parametrize("datatype", NUMERIC)
def test_round_trip_of_every_numeric_datatype(datatype):
    values = np.random.default_rng(4).integers(0, 2, (3, 1, 5)).astype(DATATYPES[datatype])
    # A view that is not contiguous has its values in C order all the same.
    array = from_raw(datatype, (5, 1, 3), to_raw(values.transpose(2, 1, 0)))
    # FP8_E8M0FNU has no 0 but NaN, and NumPy compares NaN in its own dtypes alone.
    np.testing.assert_array_equal(
        array.astype("complex128"), values.transpose(2, 1, 0).astype("complex128")
    )
    assert not array.flags.writeable


def test_bfloat16_is_the_upper_half_of_float32():
    halves = np.float32([1.5, -3.0]).view(np.uint16)[1::2]
    assert to_raw(np.array([1.5, -3.0], jax.numpy.bfloat16)) == halves.tobytes()


def test_small_integers_have_zeros_above_their_value():
    # -1 and 7 in four bits; XLA may leave any bits above them.
    assert to_raw(np.array([-1, 7], np.int8).view("int4")) == b"\x0f\x07"
    assert from_raw("INT4", (2,), b"\x0f\x07").astype(int).tolist() == [-1, 7]


def test_aligned_data_is_not_copied():
    data = bytearray(24)
    assert np.shares_memory(from_raw("FP32", (2, 3), data), np.frombuffer(data, np.uint8))
    assert not from_raw("FP32", (2, 3), data).flags.writeable
    odd = from_raw("FP32", (5,), memoryview(data)[3:23])
    assert odd.flags.aligned
    assert not odd.flags.writeable


def test_bytes_elements_are_what_they_were():
    data = struct.pack("<I3sI0sI2s", 3, b"a\0b", 0, b"", 2, b"\xff\n")
    array = from_raw("BYTES", (3, 1), data)
    assert array.tolist() == [[b"a\0b"], [b""], [b"\xff\n"]]
    assert not array.flags.writeable
    assert to_raw(array) == data


@pytest.mark.thorough
@given(st.lists(st.binary(max_size=9), max_size=5))
def test_round_trip_of_bytes(elements):
    array = np.array([*elements, None], object)[:-1]
    assert from_raw("BYTES", (len(elements),), to_raw(array)).tolist() == elements


@pytest.mark.thorough
@given(
    st.sampled_from(sorted(DATATYPES)),
    st.lists(st.integers(-1, 4) | st.sampled_from([2**62, 2**31]), max_size=4),
    st.binary(max_size=40),
)
def test_any_bytes_give_an_array_of_the_shape_or_a_refusal(datatype, shape, data):
    try:
        array = from_raw(datatype, shape, data)
    except RequestError:
        return
    assert array.shape == tuple(shape)
    assert to_raw(array) == data


@pytest.mark.parametrize(
    "datatype, shape, data, parts",
    [
        ("FP32", (2, 3), b"1" * 23, ["'x'", "FP32", "[2, 3]", "24 bytes", "got 23", "C order"]),
        ("FP33", (2,), b"", ["'x'", "one of BOOL", "got 'FP33'", "write"]),
        ("FP32", (2, -1), b"", ["'x'", "from 0", "got shape [2, -1]", "write"]),
        ("FP32", (2**40, 2**40, 0), b"", ["product", "1099511627776", "write"]),
        ("FP32", (1,) * 65, b"1234", ["at most 64 axes", "got 65", "metadata"]),
        ("BOOL", (2,), b"\x01\x02", ["at most 1", "got 2", "send"]),
        ("INT4", (1,), b"\x10", ["at most 15", "got 16", "zeros above"]),
        ("BYTES", (2**40,), b"\0" * 8, ["1099511627776 elements", "got 8 bytes", "too few"]),
        ("BYTES", (2,), b"\5\0\0\0abcde\0\0", ["ends before element 1", "uint32"]),
        ("BYTES", (1,), b"\5\0\0\0abcd", ["ends inside of element 0", "got 8 bytes"]),
        ("BYTES", (1,), b"\1\0\0\0abcd", ["has 3 bytes after its elements"]),
    ],
)
def test_refusals_say_what_was_expected_and_received(datatype, shape, data, parts):
    with pytest.raises(RequestError) as refusal:
        from_raw(datatype, shape, data, tensor="x")
    for part in parts:
        assert part in str(refusal.value)
    assert refusal.value.status == 400


def test_outputs_that_are_no_bytes_are_an_error_of_the_model():
    with pytest.raises(ExecutionError, match=re.escape("'y' must be bytes, got a str; the model")):
        to_raw(np.array(["a"], object), tensor="y")


def test_count_of_a_scalar_is_one():
    assert [count(()), count((2, 3)), count((2, 0))] == [1, 6, 0]
