# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The suite lets right functions pass and finds the wrong ones."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_kernels.quantized.layout import PackedWeights, unpack_weights
from dovetail_kernels.quantized.rows import restored, rounded
from dovetail_kernels.testing.quantized import Case, cases, check, check_quantized_matmul

EVERYTHING = {need for case in cases() for need in case.needs}


def plain(x: jax.Array, w: PackedWeights, *, activations: str | None = None) -> jax.Array:
    rows, steps = rounded(x, activations=activations)
    straight = x.astype(rows.dtype)
    if steps is not None:  # the identity's gradient
        straight = straight + jax.lax.stop_gradient(rows * steps - straight)
    return restored(straight @ unpack_weights(w, dtype=rows.dtype), None, x.dtype)


def named(name: str) -> Case:
    (case,) = [case for case in cases() if case.name == name]
    return case


def test_names_are_unique_and_needs_are_known() -> None:
    names = [case.name for case in cases()]
    assert len(set(names)) == len(names)
    assert {
        "8 bits", "4 bits", "16 bits", "groups", "zero points", "int8 zero points",
        "int8 activations", "bfloat16", "float16", "float64", "odd groups", "many rows",
        "not finite",
    } == EVERYTHING  # fmt: skip


@pytest.mark.parametrize("name", ["int8, zero points", "W8A8", "int4, float64"])
def test_a_plain_product_is_right(name: str) -> None:
    check(plain, named(name))


def shuffled(x: jax.Array, w: PackedWeights, **options: str) -> jax.Array:
    return plain(x[:, ::-1], w, **options)


def without_zeros(x: jax.Array, w: PackedWeights, **options: str) -> jax.Array:
    return plain(x, dataclasses.replace(w, zeros=None), **options)


def narrow_zeros(x: jax.Array, w: PackedWeights, **options: str) -> jax.Array:
    values = (w.values - w.zeros.astype(jnp.int8)).astype(jnp.int8)  # passes the range of int8
    return plain(x, dataclasses.replace(w, values=values, zeros=None), **options)


def ignores_activations(
    x: jax.Array, w: PackedWeights, *, activations: str | None = None
) -> jax.Array:
    return plain(x, w)


def one_scale(x: jax.Array, w: PackedWeights, **options: str) -> jax.Array:
    scales = jnp.broadcast_to(w.scales[:, :1], w.scales.shape)
    return plain(x, dataclasses.replace(w, scales=scales), **options)


def coarse(x: jax.Array, w: PackedWeights, **options: str) -> jax.Array:
    return plain(x.astype(jnp.bfloat16).astype(x.dtype), w, **options)


def in_float32(x: jax.Array, w: PackedWeights, **options: str) -> jax.Array:
    return plain(x.astype(jnp.float32), w, **options).astype(x.dtype)


def wide(x: jax.Array, w: PackedWeights, **options: str) -> jax.Array:
    return plain(x, w, **options).astype(jnp.float32)


def clamped(x: jax.Array, w: PackedWeights, **options: str) -> jax.Array:
    return jnp.nan_to_num(plain(x, w, **options))


def without_gradient(x: jax.Array, w: PackedWeights, **options: str) -> jax.Array:
    return plain(jax.lax.stop_gradient(x), w, **options)


@pytest.mark.parametrize(
    "wrong, name, message",
    [
        (shuffled, "int8, one row", r"int8, one row: y\[0, \d+\] is .*off by .*, bound "),
        (without_zeros, "int4, groups and zero points", r"y\["),
        (narrow_zeros, "int8, int8 zero points", r"int8 zero points: y\["),
        (ignores_activations, "W8A8", r"W8A8: y\["),
        (one_scale, "int8, groups", r"y\["),
        (coarse, "int8, one row", r"y\["),
        (in_float32, "int8, float64", r"y\["),
        (wide, "int8, bfloat16", r"y is float32\[3, 37\], expected bfloat16\[3, 37\]"),
        (clamped, "int8, not finite", r"a row of x with inf or nan gives finite results"),
        (without_gradient, "int8, one row", r"dx\[0, 0\] is 0,"),
    ],
)
def test_a_wrong_function_is_found(wrong: Callable, name: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check(wrong, named(name))


@pytest.mark.thorough
def test_what_is_not_supported_may_be_refused_but_not_be_wrong() -> None:
    def only_rows(x: jax.Array, w: PackedWeights, **options: str) -> jax.Array:
        if x.dtype != np.float32 or w.bits != 8 or options or w.groups > 1:
            raise NotImplementedError
        return without_zeros(x, w)

    supports = {"8 bits", "many rows", "odd groups", "not finite"}
    with pytest.raises(AssertionError, match=r"int8, zero points: y"):
        check_quantized_matmul(only_rows, supports=supports)

    def refuses(x: jax.Array, w: PackedWeights, **options: str) -> jax.Array:
        raise ValueError("no")

    check_quantized_matmul(refuses, supports=())
    with pytest.raises(AssertionError, match=r"refused: ValueError\('no'\)"):
        check_quantized_matmul(refuses, supports={"8 bits"})
