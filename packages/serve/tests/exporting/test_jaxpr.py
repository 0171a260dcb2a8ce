# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Callbacks are refused wherever they stand, and captured arrays are counted once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_serve.exporting.jaxpr import (
    CAPTURED_BYTES,
    captures_floats,
    check_jaxpr,
    coarsest,
)

X = jax.ShapeDtypeStruct((3,), "float32")


def closed(fn):
    return jax.jit(fn).trace(X).jaxpr


def printed(x):
    jax.debug.print("{}", x[0])
    return x


def called(x):
    return jax.pure_callback(np.sin, x, x)


@pytest.mark.parametrize("inner", [printed, called])
@pytest.mark.parametrize(
    "outer",
    [
        lambda f: f,
        jax.jit,
        lambda f: lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0],
        lambda f: lambda x: jax.lax.cond(x[0] > 0, f, lambda x: -x, x),
        lambda f: lambda x: jax.lax.while_loop(lambda c: c[0] > 0, f, x),
    ],
    ids=["plain", "jit", "scan", "cond", "while"],
)
def test_callbacks_are_refused(inner, outer):
    with pytest.raises(
        ValueError,
        match=r"must not call back into Python.*got the operation '.*'; remove .*before=",
    ):
        check_jaxpr(closed(outer(inner)))


def array(count, seed):
    return np.random.default_rng(seed).normal(size=count).astype("float32")


def test_large_captured_arrays_are_warned_about_with_their_bytes():
    first, second = array(CAPTURED_BYTES // 4, 0), jnp.asarray(array(7, 1))

    @jax.jit
    def inner(x):
        return x + (second * x[0]).sum()

    with pytest.warns(
        UserWarning, match=f"captures {CAPTURED_BYTES + 28} bytes.*pass them in params"
    ):
        check_jaxpr(closed(lambda x: inner(inner(x)) + (first * x[1]).sum() + (first * x[2]).max()))


def test_small_captured_arrays_are_accepted():
    kernel = array(CAPTURED_BYTES // 4, 0)
    check_jaxpr(closed(lambda x: x + (kernel * x[0]).sum()))


def half(x):
    return (x.astype("bfloat16") * 2).astype("float32")


@pytest.mark.parametrize(
    ("fn", "dtype"),
    [
        (lambda x: x * 2, "float32"),
        (half, "bfloat16"),
        (lambda x: jax.lax.scan(lambda c, _: (half(c), None), x, None, length=2)[0], "bfloat16"),
        (lambda x: x.astype("float8_e5m2").astype("float32"), "bfloat16"),
        (lambda x: (x > 0) & jax.random.bernoulli(jax.random.key(0), shape=x.shape), "float32"),
    ],
    ids=["float32", "inside", "in a loop", "8 bits", "random"],
)
def test_coarsest_dtype_of_the_results(fn, dtype):
    assert coarsest(closed(fn)) == dtype


def test_machines_that_round_products():
    assert coarsest(closed(lambda x: x * 2), least="bfloat16") == "bfloat16"
    assert coarsest(closed(lambda x: x.astype("float8_e5m2")), least="float16") == "bfloat16"
    integers = jax.jit(lambda x: x + 1).trace(jax.ShapeDtypeStruct((3,), "int32")).jaxpr
    assert coarsest(integers, least="bfloat16") is None


@pytest.mark.parametrize(
    "move",
    [
        lambda w: w,
        lambda w: w.T.reshape(2, 3, 4)[::-1, 1:].astype("float32") * 2,
        lambda w: jnp.concatenate([w, w])[jnp.asarray([0, 5])].astype("float32") * 2,
        lambda w: jnp.sort(jnp.where(w > 0, w, w[::-1])).astype("float32") * 2,
        lambda w: jax.lax.scan(lambda c, x: (c, x), w[0], w)[1].astype("float32") * 2,
    ],
    ids=["nothing", "shapes", "rows", "choices", "in a loop"],
)
@pytest.mark.parametrize("dtype", ["float8_e8m0fnu", "float8_e4m3fn", "bfloat16"])
def test_moves_of_values_round_nothing(move, dtype):
    kernel = jax.ShapeDtypeStruct((4, 6), dtype)
    moved = jax.jit(lambda w, x: move(w).sum(dtype="float32") + x * 2).trace(kernel, X).jaxpr
    assert coarsest(moved) == "float32"


def test_captured_floats_are_arrays_of_floats():
    floats, integers = jnp.asarray(array(3, 0)), jnp.arange(3)
    assert captures_floats(closed(lambda x: jax.jit(lambda y: y + floats)(x)))
    assert not captures_floats(closed(lambda x: x * 2.5 + integers + np.float32(3.0)))
