# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Operands, bytes and error of the product for a GPU; `test_api` runs the suite on it."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_kernels.dispatch import Device
from dovetail_kernels.quantized import scaled
from dovetail_kernels.quantized.api import (
    IMPLEMENTATIONS,
    plan_quantized_matmul,
    quantized_matmul,
)
from dovetail_kernels.quantized.layout import unpack_weights
from dovetail_kernels.quantized.pack import pack_weights

W = np.random.default_rng(0).standard_normal((64, 37)).astype(np.float32)


def test_reads_integers_once() -> None:
    """XLA for a CPU widens them; on a GPU (H200, jax 0.11.2, compiled) these bytes are moved."""
    x = jax.ShapeDtypeStruct((2, 64), jnp.bfloat16)

    def moved(rows: int, **options: int) -> int:
        call = plan_quantized_matmul(x, pack_weights(W, **options)).call
        call = dataclasses.replace(
            call, rows=rows, device=Device(platform="gpu", kind="NVIDIA H200")
        )
        return IMPLEMENTATIONS["scaled"].work(call).bytes

    rows = 2 * 2 * (64 + 37)
    assert moved(2, bits=8) - rows == 64 * 37 + 4 * 37 + 2 * (4 * 2 * 37)
    assert moved(2, bits=4, group_size=64) - rows == 3 * 32 * 37 + 4 * 37 + 2 * (4 * 2 * 37)
    sums = 4 * 2 * 2 * 37  # of two groups
    assert moved(2, bits=8, group_size=32) - rows == 64 * 37 + 2 * 4 * 37 + 2 * sums
    terms = 2 * 2 * 64 * (37 + 100)  # bfloat16, of weights and of 100 rows
    many = moved(100, bits=8, group_size=32) - 50 * rows
    assert many == 64 * 37 + 2 * 4 * 37 + 2 * terms


@pytest.mark.parametrize("bits, group_size", [(8, None), (4, 32), (16, None)])
def test_converts_integers_alone(bits: int, group_size: int | None) -> None:
    """XLA reads such an operand as integers on a GPU; a multiplication of it would be written."""
    w = pack_weights(W, bits=bits, group_size=group_size)
    x = jnp.ones((1, 64), jnp.bfloat16)
    jaxpr = jax.make_jaxpr(functools.partial(scaled.run, activations=None))(x, w)
    (dot,) = (e for e in jaxpr.eqns if e.primitive.name == "dot_general")
    rows, weights = sorted((v.aval for v in dot.invars), key=lambda aval: 37 in aval.shape)
    assert (rows.size, weights.size) == (2 * 64, 37 * 64), "one row is two"
    assert rows.dtype == weights.dtype == jnp.bfloat16
    assert dot.outvars[0].aval.dtype == jnp.float32
    whole = {e.primitive.name for e in jaxpr.eqns if e.outvars[0].aval.size == 37 * 64}
    shapes = {"reshape", "broadcast_in_dim", "squeeze", "bitcast_convert_type"}
    assert whole <= shapes | {"convert_element_type"}


@pytest.mark.parametrize("rows", [3, 70])
@pytest.mark.parametrize("options", [{"bits": 8}, {"bits": 4, "group_size": 32}], ids=str)
def test_is_no_less_accurate(rows: int, options: dict) -> None:
    w = pack_weights(W, symmetric=False, **options)
    x = jnp.asarray(np.random.default_rng(rows).standard_normal((rows, 64)), jnp.bfloat16)
    exact = np.asarray(x).astype(np.float64) @ np.asarray(unpack_weights(w), np.float64)

    def error(impl: str) -> float:
        y = np.asarray(quantized_matmul(x, w, impl=impl)).astype(np.float64)
        return float(np.linalg.norm(y - exact) / np.linalg.norm(exact))

    # Both round y to bfloat16, half of 2^-8; two bfloat16 leave 2^-17 of a weight.
    assert error("reference") < 2.0**-9
    assert error("scaled") <= error("reference") + 2.0**-17
