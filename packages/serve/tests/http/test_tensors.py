# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""JSON data become arrays and return unchanged; whatever does not fit is refused."""

import json
import struct
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_serve.errors import ExecutionError, RequestError
from dovetail_serve.http.tensors import from_json, to_json

SHAPES = st.lists(st.integers(0, 4), max_size=3)
INTEGERS = {f"{s}INT{b}": f"{s.lower()}int{b}" for s in ("U", "") for b in (8, 16, 32, 64)}
FLOATS = {"FP16": "float16", "FP32": "float32", "FP64": "float64", "BF16": "bfloat16"}


def nested(values, shape):
    """The values as nested lists, by plain Python."""
    if not shape:
        return values[0]
    size = int(np.prod(shape[1:], dtype=int))
    return [nested(values[i * size : (i + 1) * size], shape[1:]) for i in range(shape[0])]


def through_json(value):
    return orjson.loads(orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY))


@pytest.mark.thorough
@given(data=st.data(), shape=SHAPES, nest=st.booleans(), name=st.sampled_from(sorted(INTEGERS)))
@settings(max_examples=60, deadline=None)
def test_integers_round_trip(data, shape, nest, name):
    info = np.iinfo(INTEGERS[name])
    size = int(np.prod(shape, dtype=int))
    values = data.draw(st.lists(st.integers(info.min, info.max), min_size=size, max_size=size))
    sent = nested(values, shape) if nest and shape else values
    array = from_json(name, shape, sent)
    assert array.dtype == INTEGERS[name]
    assert array.shape == tuple(shape)
    assert array.ravel().tolist() == values
    assert through_json(to_json(array)) == values


@given(data=st.data(), shape=SHAPES, name=st.sampled_from(sorted(FLOATS)))
@settings(max_examples=60, deadline=None)
def test_floats_round_trip_bit_for_bit(data, shape, name):
    dtype, size = jnp.dtype(FLOATS[name]), int(np.prod(shape, dtype=int))
    raw = data.draw(st.binary(min_size=size * dtype.itemsize, max_size=size * dtype.itemsize))
    array = np.frombuffer(raw, dtype).reshape(shape)
    with np.errstate(invalid="ignore"):  # a signalling NaN
        array = np.where(np.isfinite(array), array, dtype.type(1.5))
    again = from_json(name, shape, through_json(to_json(array)))
    assert again.dtype == dtype
    assert again.tobytes() == array.tobytes()


@pytest.mark.thorough
@given(values=st.lists(st.text(max_size=5), max_size=6))
@settings(max_examples=30, deadline=None)
def test_texts_round_trip(values):
    array = from_json("BYTES", [len(values)], values)
    assert array.tolist() == [value.encode() for value in values]
    assert to_json(array) == values


def test_booleans_round_trip():
    array = from_json("BOOL", [2, 3], [[True, False, True], [False, False, True]])
    assert array.dtype == bool
    assert through_json(to_json(array)) == [True, False, True, False, False, True]


def test_a_decimal_is_rounded_once_to_single_precision():
    """`struct` rounds a double to a float by itself."""
    values = np.random.default_rng(0).normal(size=50).tolist()
    expected = [struct.unpack("f", struct.pack("f", value))[0] for value in values]
    assert from_json("FP32", [50], values).tolist() == expected


def nearest_bfloat16(value):
    """The nearest of all finite values, of two equally near ones that with an even last bit."""
    bits = np.arange(0x7F80, dtype="uint16")  # the finite values from 0, in order
    finite = bits.view(FLOATS["BF16"]).astype(float)
    above = int(np.searchsorted(finite, abs(value)))
    near = range(max(above - 1, 0), above + 1)
    magnitude = abs(Fraction(value))
    best = min(near, key=lambda i: (abs(Fraction(finite[i]) - magnitude), i % 2))
    return float(np.copysign(finite[best], value))


def test_a_decimal_is_rounded_once_to_bfloat16():
    """Next to the middle of two values, a rounding to float32 before would make a tie of it."""
    generator = np.random.default_rng(0)
    nudge = generator.choice([-1, 0, 1], 200) * 2.0 ** -generator.integers(20, 53, 200)
    middles = 1 + 2.0**-8 * generator.choice([1, 3], 200) + nudge
    values = np.ldexp(middles, generator.integers(-140, 127, 200)) * generator.choice([-1, 1], 200)
    values = [1 + 2**-8 + 2**-40, *values.tolist(), *generator.normal(size=50).tolist(), -0.0]
    array = from_json("BF16", [len(values)], values)
    assert float(array[0]) == 1.0078125
    assert array.astype(float).tolist() == [nearest_bfloat16(value) for value in values]


@pytest.mark.parametrize("name", sorted(FLOATS))
def test_infinities_and_nan_may_be_sent(name):
    array = from_json(name, [3], [float("inf"), float("nan"), -float("inf")])
    assert str(array.astype(float).tolist()) == "[inf, nan, -inf]"


def test_infinities_may_not_be_made():
    with pytest.raises(RequestError, match=r"from -65504.0 to 65504.0, got 65520"):
        from_json("FP16", [2], [float("inf"), 65520])


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "message"),
    [
        ("INT8", [2], [1, 300], "INT8 must be from -128 to 127, got 300; send them in range"),
        ("UINT8", [1], [-1], "UINT8 must be from 0 to 255, got -1; send them in range"),
        ("FP32", [1], [1e39], r"FP32 must be from -3.4\d+e\+38 to 3.4\d+e\+38, got 1e\+39; send"),
        ("BF16", [2], [1e39, 1], r"BF16 must be from .*, got 1e\+39; send"),
        ("BF16", [1], [3.4e38], r"BF16 must be from .*, got 3.4e\+38; send"),
        ("FP64", [1], [10**400], "FP64 must be from .*, got 10000"),
        ("INT32", [2], [1, True], "each be an integer, got a Boolean: True; write values such as"),
        ("INT32", [1], [1.0], "each be an integer, got a number with a point: 1.0; write values"),
        ("FP32", [2], [1.0, None], "got null: None; write values such as 1"),
        ("FP32", [1], ["1"], "got a string: 1; write values"),
        ("FP32", [1], [{}], "got an object: {}; write values"),
        ("BOOL", [1], [1], "each be a Boolean, got an integer: 1; write values such as true"),
        ("BYTES", [1], [1], 'each be a string, got an integer: 1; write values such as "text"'),
        ("INT32", [3], [1, 2], r"\[3\] must have 3 values, .*, got 2 elements; send the values"),
        ("INT32", [2, 3], [[1, 2], [3, 4], [5, 6]], "must have 6 values, .*, got 3 elements"),
        ("INT32", [2, 2], [[1, 2], [3]], "must have 4 values, .*, got 1 elements at axis 1"),
        ("INT32", [2, 2], [[1, 2], 3], "must have 4 values, .*, got a value at axis 1"),
        ("INT32", [2], [[1], [2]], "got a list"),
        ("FP8_E5M2", [1], [1], "must be sent as binary data, got JSON data of FP8_E5M2; send its"),
        ("FLOAT", [1], [1], "one of BOOL.*, got 'FLOAT'; write one"),
        ("BYTES", [1], ["\ud800"], "must be Unicode, got half of a surrogate.*; send such bytes"),
        ("INT8", [-1], [1], r"from 0 .*, got shape \[-1\]; write"),
    ],
)
def test_data_that_do_not_fit_are_refused(datatype, shape, data, message):
    with pytest.raises(RequestError, match=message) as error:
        from_json(datatype, shape, data, tensor="some name")
    assert "'some name'" in str(error.value)


def test_outputs_without_a_form_in_json_are_refused():
    with pytest.raises(
        RequestError, match="as binary data, got a request for JSON data of INT4; w"
    ):
        to_json(np.zeros(2, jnp.int4))
    with pytest.raises(RequestError, match=r"not UTF-8: b'\\xff'; write parameters.binary_data"):
        to_json(np.array([b"\xff"], object))
    with pytest.raises(ExecutionError, match="must be bytes, got a str; the model's host function"):
        to_json(np.array(["text"], object))


def test_an_output_is_flat_and_contiguous():
    array = np.arange(6, dtype="int32").reshape(2, 3).T
    text = orjson.dumps(to_json(array), option=orjson.OPT_SERIALIZE_NUMPY)
    assert json.loads(text) == [0, 3, 1, 4, 2, 5]
