# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""y = x w in the type of the weights: x is split into terms of that type, weights stay unchanged.

A product of a few rows costs reading the weights. The processor multiplies int8 and bfloat16 as
fast for sixteen rows as for one. One float32 row therefore becomes several rows: four int8 digits,
or three bfloat16 terms. The weights are read once, one or two bytes each, and nothing is
dequantized. Digits give exact integer sums, scaled at the end; a channel must therefore have one
scale.

    x = step (d0 + d1 / 128 + d2 / 128^2 + d3 / 128^3),  |d| <= 64, to 2^-27 max|x|
    x = t0 + t1 + t2, exactly: 8 of the 24 bits each

8-bit rows (activations="int8") are one term.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from dovetail_kernels.arrays import absmax
from dovetail_kernels.quantized.blocks import by_outputs
from dovetail_kernels.quantized.layout import BIAS, PackedWeights, columns, stored
from dovetail_kernels.quantized.rows import eight_bits

DIGITS = 4
# XLA's CPU backend takes a product with fewer rows for a matrix times a vector, and runs that 10 to
# 20 times slower in these types.
PADDED = 16
# Longer int8 sums could overflow int32: 128 * 128 * D.
LONGEST = 2**17 - 1
# Weights of a block while their nibbles are apart: 1 MiB as int8.
WEIGHTS = 2**20


def run(x: Array, packed: PackedWeights, *, activations: str | None) -> Array:
    """Computes y[M, F] = x[M, D] w[D, F].

    Args:
        x: Activations [M, D].
        packed: bfloat16 weights, or integers with one scale per output channel.
        activations: "int8" rounds the rows of x to 8 bits. None keeps them.
    """
    if packed.bits == 16:
        return _bfloat16(x, packed).astype(x.dtype)
    q, step = digits(x) if activations is None else _one(x)
    terms, rows = q.shape[0], q.shape[1]
    q = q.reshape(terms * rows, q.shape[2])
    sums = _sums(_padded(q), packed)[: terms * rows]
    y = _combined(sums.reshape(terms, rows, -1), step.dtype)
    if packed.zeros is not None:
        total = jnp.sum(q, axis=1, keepdims=True, dtype=jnp.int32)
        of_rows = _combined(total.reshape(terms, rows, 1), step.dtype)
        y = y - of_rows * packed.zeros[:, 0].astype(step.dtype)[None]
    return (y * packed.scales[:, 0].astype(step.dtype)[None] * step).astype(x.dtype)


def digits(x: Array) -> tuple[Array, Array]:
    """Returns digits int8[4, M, D] of x[M, D], and the step of the first digit, float32[M, 1]."""
    x = x.astype(jnp.float32)
    most = absmax(x, axis=1, keepdims=True)
    # The power of two below it: its bits without the mantissa. Dividing by it is exact. A row with
    # inf or nan gets inf, which makes all its results inf or nan.
    bits = jax.lax.bitcast_convert_type(most, jnp.uint32) & jnp.uint32(0x7F800000)
    power = jax.lax.bitcast_convert_type(bits, jnp.float32)
    # XLA may multiply by the inverse, which must be a normal number: that of 2**127 is not.
    large = power > 1
    divisor = jnp.where(power == 0, 1, jnp.where(large, power / 32, power))
    rest, planes = x / divisor * jnp.where(large, 1.0, 32.0), []
    for _ in range(DIGITS):
        digit = jnp.round(rest)
        rest = (rest - digit) * 128
        planes.append(digit.astype(jnp.int8))
    return jnp.stack(planes), power / 32


def terms_of(x: Array) -> Array:
    """Splits x into bfloat16 terms [K, M, D] with sum x, exactly.

    K is 1 for bfloat16, 2 for float16 and 3 for float32.
    """
    if x.dtype == jnp.bfloat16:
        return x[None]
    rest, terms = x.astype(jnp.float32), []
    for _ in range(2 if x.dtype == jnp.float16 else 3):
        # Cut, not rounded: a conversion and back is a rounding that XLA may leave out.
        bits = jax.lax.bitcast_convert_type(rest, jnp.uint32) & jnp.uint32(0xFFFF0000)
        term = jax.lax.bitcast_convert_type(bits, jnp.float32)
        rest = rest - term
        terms.append(term.astype(jnp.bfloat16))
    return jnp.stack(terms)


def _bfloat16(x: Array, packed: PackedWeights) -> Array:
    terms = terms_of(x)
    count, rows, inputs = terms.shape
    flat = _padded(terms.reshape(count * rows, inputs))
    y = _dot(flat, packed.values, jnp.float32)[: count * rows].reshape(count, rows, -1)
    total = y[count - 1]
    for k in range(count - 2, -1, -1):  # the least first
        total = total + y[k]
    return total


def _one(x: Array) -> tuple[Array, Array]:
    q, step = eight_bits(x)
    return q[None], step


def _padded(q: Array) -> Array:
    rows = q.shape[0]
    # A symbolic number (`jax.export`) may be any: it has `PADDED` more rows.
    missing = max(0, PADDED - rows) if isinstance(rows, int) else PADDED
    return jnp.pad(q, ((0, missing), (0, 0)))


def _sums(q: Array, packed: PackedWeights) -> Array:
    """Returns int32[R, F], the exact sums of q[R, D] times the signed integers of the weights."""
    if packed.bits == 8:
        return _dot(q, packed.values, jnp.int32)
    low, high = columns(q, packed)

    def halves(block: PackedWeights) -> Array:
        a, b = stored(block)
        return _dot(low, a, jnp.int32) + _dot(high, b, jnp.int32)

    biased = by_outputs(halves, packed, weights=WEIGHTS)
    return biased - BIAS * jnp.sum(q, axis=1, keepdims=True, dtype=jnp.int32)


def _combined(sums: Array, dtype: DTypeLike) -> Array:
    """Adds the sums of each digit [K, M, F], in units of the first."""
    y = sums[-1].astype(dtype)
    for k in range(sums.shape[0] - 2, -1, -1):
        y = y / 128 + sums[k].astype(dtype)
    return y


def _dot(a: Array, b: Array, dtype: DTypeLike) -> Array:
    """Multiplies a[R, D] by the transpose of b[F, D]."""
    return jax.lax.dot_general(a, b, (((1,), (1,)), ((), ())), preferred_element_type=dtype)
