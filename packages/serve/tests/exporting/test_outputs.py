# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Outputs of a program are a dictionary of arrays, with the batch axis first."""

import collections
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export

from dovetail_serve import Tensor, export
from dovetail_serve.exporting.outputs import check_equal, check_numbers, outputs_of


def program(fn, rows=4):
    (size,) = jax_export.symbolic_shape("batch") if rows == "symbolic" else (rows,)
    return jax_export.export(jax.jit(fn))(jax.ShapeDtypeStruct((size, 3), "float32"))


@pytest.mark.parametrize("rows", [4, "symbolic"])
def test_outputs(rows):
    outputs = outputs_of(program(lambda x: {"y": x[:, 0] > 0, "z": x}, rows), rows)
    assert outputs == {"y": Tensor(("batch",), "bool"), "z": Tensor(("batch", 3), "float32")}


def test_outputs_without_a_batch_axis():
    outputs = outputs_of(program(lambda x: {"y": x.sum()}), None)
    assert outputs == {"y": Tensor((), "float32")}


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda x: x, r"a dictionary of arrays by name, got PyTreeDef\(\*\); write return"),
        (lambda x: (x, x), r"a dictionary of arrays by name, got PyTreeDef"),
        (lambda x: {}, r"a dictionary of arrays by name, got PyTreeDef\(\{\}\)"),
        (lambda x: {"y": {"z": x}}, r"must be an array, got 'y' of PyTreeDef.*; return"),
        (lambda x: {"y": None}, "must be an array, got 'y' of None; leave it out"),
        (lambda x: {"a/b": x}, "the name of an output .*got 'a/b'; write"),
        (lambda x: {"y": x.sum()}, r"one row for each row .*got 'y' of shape \(\) for 4 rows; ret"),
        (lambda x: {"y": x.T}, r"got 'y' of shape \(3, 4\) for 4 rows"),
        (lambda x: {"y": jnp.repeat(x, 2, 0)}, r"got 'y' of shape \(8, 3\) for 4 rows"),
        (lambda x: {"y": jax.random.split(jax.random.key(0), 4)}, r"got 'y' of key.*key_data"),
    ],
)
def test_other_results_are_refused(fn, message):
    with pytest.raises(ValueError, match=message):
        outputs_of(program(fn), 4)


def test_symbolic_rows_along_a_second_axis_are_refused():
    with pytest.raises(ValueError, match="along its first axis alone, got 'y'"):
        outputs_of(program(lambda x: {"y": x @ x.T}, "symbolic"), "symbolic")


@pytest.mark.parametrize(
    "others",
    [{}, {"y": Tensor(("batch",), "int32")}, {"y": Tensor(("batch", 2), "float32")}],
)
def test_differing_outputs_are_refused(others):
    first = {"y": Tensor(("batch",), "float32")}
    with pytest.raises(ValueError, match=r"got 'y' as Tensor.* for 8 rows on cpu, tpu; make its"):
        check_equal(first, others, rows=8, platforms=("cpu", "tpu"))
    with pytest.raises(ValueError, match="for 8 rows"):
        check_equal(others, first, rows=8, platforms=("cpu",))
    check_equal(first, dict(first), rows=8, platforms=("cpu",))


NUMBERS = [
    # The number, its weight's dtype, the dtype of the input.
    (2.0, "float32", "bfloat16"),
    (2, "int32", "int8"),
    (jnp.asarray(2.0), "float32", "bfloat16"),
]


@pytest.mark.parametrize(("number", "weight", "dtype"), NUMBERS)
def test_numbers_that_decide_a_dtype_are_refused(number, weight, dtype):
    def fn(p, *, x):
        return {"y": x * p["a"]["scale"] + p["other"].astype(x.dtype)}

    inputs = {"x": Tensor(("batch", 3), dtype)}
    params = {"a": {"scale": number}, "other": np.ones(3, ">f4")}
    with pytest.raises(ValueError, match="a number in params must not decide the dt") as caught:
        check_numbers(fn, params, inputs, rows=2)
    for part in (
        f"got 'y' as {dtype}",
        f"with 'a.scale' as a weight, as {weight}",
        f"pass np.asarray(number, '{dtype}')",
    ):
        assert part in str(caught.value)
    params["a"]["scale"] = np.asarray(number, jnp.dtype(dtype))
    check_numbers(fn, params, inputs, rows=2)


def test_numbers_beside_their_own_dtype_are_accepted():
    def fn(p, *, x):
        return {"y": x * p["scale"], "z": jax.random.normal(p["key"], x.shape)}

    params = {"scale": 2.0, "key": jax.random.key(0)}
    check_numbers(fn, params, {"x": Tensor((3,), "float32")}, rows=None)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [collections.OrderedDict, types.MappingProxyType])
def test_every_mapping_of_outputs_becomes_a_dictionary(kind):
    """A sidecar has the structure of a dictionary, whatever the function returned."""
    bundle = export(
        lambda p, *, x: kind({"y": x @ p["w"], "a": x * p["scale"]}),
        {"w": np.ones((3, 4), "float32"), "scale": 2.0},
        inputs={"x": Tensor(("batch", 3), "float32")},
        example={"x": np.ones((3, 3), "float32")},
        batch_sizes=(4,),
        platforms=("cpu",),
    )
    assert bundle.signature.outputs.keys() == bundle.golden[1].keys() == {"y", "a"}
    for data in bundle.traced.files.values():
        tree = jax.export.deserialize(bytearray(data)).out_tree
        assert tree == jax.tree.structure({"y": 0, "a": 0})


def test_a_number_that_decides_a_dtype_is_refused_by_export():
    with pytest.raises(ValueError, match=r"got 'y' as bfloat16 and, with 'scale' as a weight"):
        export(
            lambda params, *, x: {"y": x * params["scale"]},
            {"scale": 2.0},
            inputs={"x": Tensor(("batch", 3), "bfloat16")},
            example={"x": jnp.ones((3, 3), "bfloat16")},
            batch_sizes=(4,),
        )
