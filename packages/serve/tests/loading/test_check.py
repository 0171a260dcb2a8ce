# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Inputs of a call are refused with what is expected, what came, and what to write instead."""

import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_serve.errors import ExecutionError, RequestError
from dovetail_serve.loading.check import check_inputs, check_results
from dovetail_serve.types import HostFunction, Signature, Tensor

BATCHED = Signature(
    inputs={
        "x": Tensor(("batch", 3, 5), "float32"),
        "mask": Tensor(("batch",), "bool"),
        "half": Tensor(("batch", 2), "bfloat16"),
    },
    outputs={},
)
FIXED = Signature(inputs={"x": Tensor((3, 5), "int4"), "n": Tensor((), "int32")}, outputs={})
TEXTS = Signature(inputs={"text": Tensor(("batch", 2), "bytes")}, outputs={})


def inputs(rows=4, **changes):
    random = np.random.default_rng(rows)
    arrays = {
        "x": random.normal(size=(rows, 3, 5)).astype("float32"),
        "mask": random.integers(0, 2, size=rows).astype(bool),
        "half": jnp.asarray(random.normal(size=(rows, 2)), jnp.bfloat16),
    }
    return {name: array for name, array in (arrays | changes).items() if array is not None}


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_the_number_of_rows_is_returned(rows):
    assert check_inputs(BATCHED, inputs(rows)) == rows


def test_without_a_batch_axis_there_is_none():
    arrays = {"x": np.zeros((3, 5), jnp.int4), "n": jnp.int32(3)}
    assert check_inputs(FIXED, arrays) is None


def test_texts_are_objects_of_class_bytes():
    assert check_inputs(TEXTS, {"text": np.array([[b"a", b""], [b"b\0", b"c"]], object)}) == 2


X = "input 'x' must be float32[batch, 3, 5], got "


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": None}, "must be named x, mask, half, got mask, half; add x, float32[batch, 3, 5]"),
        ({"y": np.zeros(3)}, "must be named x, mask, half, got x, mask, half, y; leave out 'y'"),
        ({"x": None, "X": np.zeros(3)}, "; add x, float32[batch, 3, 5]; leave out 'X'"),
        ({"x": [[1.0]]}, "must be an array, float32[batch, 3, 5], got a list; write np.asarray(x"),
        ({"x": 3.0}, "got a float; write np.asarray(x, 'float32')"),
        ({"x": np.zeros((4, 3, 5))}, X + "float64[4, 3, 5]; write x.astype('float32')"),
        ({"x": np.zeros((4, 3, 5), ">f4")}, X + ">f4[4, 3, 5]; write x.astype('float32')"),
        ({"x": jnp.zeros((4, 3, 5), "int32")}, X + "int32[4, 3, 5]; write x.astype('float32')"),
        ({"x": np.zeros((4, 3, 5), object)}, X + "object[4, 3, 5]; write x.astype"),
        ({"x": np.zeros((3, 5), "float32")}, X + "float32[3, 5]; write x[None] for one row"),
        ({"x": np.zeros((4, 5, 3), "float32")}, X + "float32[4, 5, 3]; give any number of rows of"),
        ({"x": np.zeros((4, 3), "float32")}, X + "float32[4, 3]; give any number of rows of shape"),
        ({"x": np.zeros((), "float32")}, X + "float32[]; give any number of rows of shape (3, 5)"),
        ({"mask": np.zeros((), bool)}, "bool[batch], got bool[]; write mask[None] for one row"),
        ({"mask": np.zeros(5, bool)}, "equal numbers of rows, got x=4, mask=5, half=4; send rows"),
        ({"half": np.zeros((4, 2), "float16")}, "float16[4, 2]; write half.astype('bfloat16')"),
    ],
)
def test_other_inputs_are_refused(change, message):
    with pytest.raises(RequestError) as caught:
        check_inputs(BATCHED, inputs(**change))
    assert message in str(caught.value)
    assert caught.value.status == 400


def test_fixed_shapes_are_refused_with_the_shape():
    with pytest.raises(
        RequestError, match=r"int4\[3, 5\], got int4\[3, 4\]; give an array of shape"
    ):
        check_inputs(FIXED, {"x": np.zeros((3, 4), jnp.int4), "n": jnp.int32(3)})


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (np.array([["a", "b"]], object), r"write text\.encode\(\) for each item"),
        (np.array([["a", "b"]]), r"got str\d*\[1, 2\]; write np\.array\(\[\.\.\.\], object\)"),
        (np.array([[b"a", b"b"]]), r"got bytes\d*\[1, 2\]; write np\.array\(\[\.\.\.\], object\)"),
        (np.array([b"a"], object), r"got object\[1\]; give any number of rows of shape \(2,\)"),
    ],
)
def test_other_texts_are_refused(texts, message):
    with pytest.raises(RequestError, match=message):
        check_inputs(TEXTS, {"text": texts})


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ([np.zeros(4, "int32")], "must return a dictionary of arrays, got a list; return {'ids'"),
        ({}, "other arrays than the bundle says: arrays must be named ids, got none; add ids"),
        ({"ids": np.zeros(4)}, "must be int32[batch], got float64[4]; write ids.astype('int32')"),
        ({"ids": np.zeros(5, "int32")}, "rows must stay 4, got 5; return one row for each row"),
    ],
)
def test_results_of_a_host_function_are_checked(results, message):
    function = HostFunction("tokenize", {"text": Tensor(("batch",), "bytes")})
    expected = {"ids": Tensor(("batch",), "int32")}
    with pytest.raises(ExecutionError) as caught:
        check_results(function, results, 4, expected)
    assert message in str(caught.value)
    assert "'tokenize'" in str(caught.value)
    check_results(function, {"ids": np.arange(4, dtype="int32")}, 4, expected)
