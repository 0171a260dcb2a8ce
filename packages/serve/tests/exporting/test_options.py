# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments of an export are refused with what came and what to type."""

import functools

import jax
import numpy as np
import pytest

from dovetail_serve import HostFunction, Platform, Tensor
from dovetail_serve.exporting import options

X = Tensor(("batch", 3), "float32")


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, r"must not be empty.*got inputs=\{\}; bind"),
        ({"x": X, "y": Tensor((3,), "float32")}, "all or none must have the axis 'batch', got"),
        ({"a/b": X}, "the name of an input .*got 'a/b'; write"),
        ({"x": Tensor(("batch",), "bytes")}, r"got 'x' of bytes; give before=HostFunction"),
        ({"x": Tensor(("batch",), "int64")}, r"dtype='int64'.*dtype='int32', or .*enable_x64"),
    ],
)
def test_wrong_inputs(inputs, message):
    with pytest.raises(ValueError, match=message):
        options.check_inputs(inputs)


@pytest.mark.parametrize(
    ("dtype", "narrower"),
    [("float64", "float32"), ("uint64", "uint32"), ("complex128", "complex64")],
)
def test_wide_dtypes_need_wide_types(dtype, narrower):
    with pytest.raises(ValueError, match=f"a weight must .*dtype='{dtype}'.*dtype='{narrower}'"):
        options.check_width("a weight", dtype)
    with jax.enable_x64(True):
        options.check_width("a weight", dtype)


def test_wide_weights_are_refused():
    with pytest.raises(ValueError, match=r"the weight 'a\.b' must have a dtype that JAX keeps"):
        options.check_weights({"a.b": np.ones(3)})


def test_weights_that_no_file_holds_are_refused():
    with jax.enable_x64(True), pytest.raises(TypeError, match="complex128"):
        options.check_weights({"w": np.ones(3, "complex128")})


@pytest.mark.parametrize("dtype", ["int2", "uint2"])
def test_dtypes_that_no_program_holds_are_refused(dtype):
    with pytest.raises(TypeError, match=f"the weight 'w' must .*, got dtype='{dtype}'; convert"):
        options.check_weights({"w": np.ones(3).astype(jax.numpy.dtype(dtype))})
    with pytest.raises(TypeError, match=f"the input 'x' must .*, got dtype='{dtype}'; convert"):
        options.check_inputs({"x": Tensor((3,), dtype)})


def test_batch_sizes():
    assert options.check_batch_sizes(None, batched=True) == (1, 8, 64)
    assert options.check_batch_sizes([2, 5], batched=True) == (2, 5)
    assert options.check_batch_sizes(None, batched=False) == ()
    assert options.check_batch_sizes((), batched=False) == ()


@pytest.mark.parametrize("sizes", [(), (0, 1), (2, 2), (4, 2)])
def test_batch_sizes_ascend_from_one(sizes):
    with pytest.raises(ValueError, match=r"must ascend from 1, got batch_sizes=\(.*; write"):
        options.check_batch_sizes(sizes, batched=True)


def test_batch_sizes_may_be_integers_of_numpy():
    for given in ([np.int64(2), np.uint8(5)], np.array([2, 5])):
        sizes = options.check_batch_sizes(given, batched=True)
        assert sizes == (2, 5)
        assert {type(size) for size in sizes} == {int}


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("size", [8, np.int32(8)])
def test_a_single_batch_size_is_refused(size, batched):
    with pytest.raises(TypeError, match=r"must be a sequence .*sizes=8; write batch_sizes=\(8,\)"):
        options.check_batch_sizes(size, batched=batched)


@pytest.mark.parametrize("size", [True, np.True_, 2.0, "symbolic"])
def test_batch_sizes_are_integers(size):
    with pytest.raises(TypeError, match=r"must be integers, got batch_sizes=.*; write"):
        options.check_batch_sizes((size,), batched=True)


def test_batch_sizes_without_a_batch_axis_are_refused():
    with pytest.raises(ValueError, match=r"got batch_sizes=\(1, 8\); leave batch_sizes out"):
        options.check_batch_sizes((1, 8), batched=False)


@pytest.mark.parametrize("given", ["cpu", Platform(name="cpu")])
def test_a_single_platform_is_refused(given):
    with pytest.raises(TypeError, match=r"a sequence, got platforms=.*; write platforms=\(.*,\)"):
        options.as_platforms(given)
    assert options.as_platforms([given]) == [Platform(name="cpu")]


@pytest.mark.parametrize("given", [{"xla_nope": 1}, {"xla_cpu_enable_fast_math": "maybe"}])
def test_compiler_options_of_this_platform_are_tried_before_any_work(given):
    with pytest.raises(ValueError, match=r"known to jaxlib .* on 'cpu', got {'xla.*; leave the op"):
        options.check_platforms([Platform(name="cpu", compiler_options=given)], {})
    options.check_platforms([Platform(name="cuda", compiler_options=given)], {})
    good = {"xla_cpu_enable_fast_math": True}
    options.check_platforms([Platform(name="cpu", compiler_options=good)], {})


def test_host_functions_have_the_batch_axis():
    labels = HostFunction("labels", {"label": Tensor((2,), "bytes")})
    with pytest.raises(ValueError, match=r"'labels' must have the axis 'batch'.*got .*; write"):
        options.check_functions(None, labels, batched=True)
    options.check_functions(None, labels, batched=False)


def test_host_functions_have_no_batch_axis_beside_inputs_without_one():
    texts = HostFunction("texts", {"text": Tensor(("batch",), "bytes")})
    with pytest.raises(ValueError, match=r"'texts' must have no axis 'batch', as .*got .*; write"):
        options.check_functions(texts, None, batched=False)
    options.check_functions(texts, None, batched=True)


@pytest.mark.parametrize(
    "fn",
    [
        lambda params, *, y: y,
        lambda params, *, x, y: y,
        lambda x: x,
        lambda: None,
        lambda params, x, /: x,
        functools.partial(lambda params, *, y: y),
    ],
)
def test_functions_with_other_arguments_are_refused(fn):
    with pytest.raises(ValueError, match=r"got .*inputs=\['x'\].*; write def fn\(params, \*, x\)"):
        options.check_call(fn, {"x": X})


@pytest.mark.parametrize(
    "fn",
    [
        lambda params, *, x: x,
        lambda params, x: x,
        lambda params, **inputs: inputs,
        lambda params, *, x, scale=2: x,
        functools.partial(lambda params, *, x, scale: x, scale=2),
        jax.jit(lambda params, *, x: x),
    ],
)
def test_functions_that_take_the_inputs_are_accepted(fn):
    options.check_call(fn, {"x": X})


ARRAYS = {"layers.0.kernel": np.ones((2, 3)), "layers.1.kernel": np.ones((2, 3, 4))}


def test_layouts_of_weights():
    options.check_platforms([Platform(name="tpu", layouts={"layers.0.*": (1, 0)})], ARRAYS)


@pytest.mark.parametrize(
    ("layouts", "message"),
    [
        ({"layers.7.*": (1, 0)}, "must match .*'layers.7.*'.*nearest"),
        ({"layers.0.*": (1, 1)}, r"'layers.0.*': \(1, 1\) for 'layers.0.kernel' of 2 axes; write"),
        ({"layers.*.kernel": (1, 0)}, r"for 'layers.1.kernel' of 3 axes; write .*\(0, 1, 2\)"),
    ],
)
def test_wrong_layouts(layouts, message):
    with pytest.raises(ValueError, match=message):
        options.check_platforms([Platform(name="tpu", layouts=layouts)], ARRAYS)


@pytest.mark.parametrize("names", [[], ["cpu", "cpu"]])
def test_platforms_come_once(names):
    with pytest.raises(ValueError, match=r"each platform once, got .*; write"):
        options.check_platforms([Platform(name=name) for name in names], ARRAYS)


@pytest.mark.parametrize(
    ("provenance", "message"),
    [
        ({"step": 3}, r"got 'step': 3; write provenance=\{'step': '3'\}"),
        ({7: "a"}, r"texts to texts, got 7: 'a'; write provenance=\{'7': 'a'\}"),
    ],
)
def test_provenance_is_text(provenance, message):
    with pytest.raises(TypeError, match=message):
        options.check_provenance(provenance)
    options.check_provenance({"step": "3"})
