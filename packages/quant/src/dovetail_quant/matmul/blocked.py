# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""y = x w, decoded a block of outputs at a time.

With few rows, reading the weights is the cost of a product. Decoded whole, they are written and
read again as float32, eight times the bytes of four bits. A block in the core's cache costs only
its codes. The same loop gives dx = dy w transposed.
"""

import dataclasses
import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from dovetail_quant.codes.codes import NF4
from dovetail_quant.codes.layout import (
    PackedWeights,
    block,
    blocks,
    by_blocks,
    by_device,
    grouped,
    merge,
    split,
)
from dovetail_quant.codes.spec import Weight
from dovetail_quant.matmul import rows

_EXACT = jax.lax.Precision.HIGHEST
# Both levels of a byte: one look-up each takes half the time of a tree of 15 selects at 16 rows.
_LOW_LEVELS = np.array(NF4 * 16, np.float32)
_HIGH_LEVELS = np.repeat(np.array(NF4, np.float32), 16)


@dataclasses.dataclass(frozen=True)
class Blocked(rows.OfPacked):
    """The product for all codes and any number of rows, without a float copy of the weight.

    |y - x w| <= eps (K + 1) sum |x||w| with eps of float32 (float64 for float64 x), before y is
    rounded to the dtype of x. Differentiable in x alone.

    Example:

        >>> from dovetail_quant import Spec
        >>> from dovetail_quant.codes.codes import quantize
        >>> w = jax.random.normal(jax.random.key(0), (256, 64))
        >>> matmul = Blocked()
        >>> prepared = matmul.prepare(quantize(w, Spec(weight="int4", group=32)))
        >>> jax.jit(matmul)(jnp.ones((3, 256)), prepared).shape
        (3, 64)
    """

    act: Literal["int8"] | None = dataclasses.field(default=None, init=False)

    def __call__(
        self, x: Float[Array, "*batch K"], prepared: PackedWeights
    ) -> Float[Array, "*batch N"]:
        """Returns x w in the dtype of x.

        Raises:
            TypeError: x is not floating point.
            ValueError: The last axis of x is not K, or a gradient in the weights is requested.
        """
        return rows.call(forward, backward, x, prepared)

    def take(
        self, prepared: PackedWeights, index: Int[Array, "*batch"]
    ) -> Float[Array, "*batch K"]:
        """Returns w[:, index] in float32: the rows of an embedding with K features.

        NaN for an index outside 0 to N - 1.
        """
        return columns(prepared, index)


def forward(x: Array, packed: PackedWeights) -> Array:
    """Returns y [R, N] = x [R, K] w, in the dtype of x."""
    parts = [_flat(half) for half in split(x, packed)]

    def product(one: PackedWeights) -> Array:
        pairs = zip(parts, decoded(one, x.dtype), strict=True)
        dots = [jnp.einsum("rk,nk->rn", half, w, precision=_EXACT) for half, w in pairs]
        return sum(dots[1:], dots[0])

    return by_blocks(product, packed)


def backward(dy: Array, packed: PackedWeights) -> Array:
    """Returns dx [R, K] = dy [R, N] w transposed, summed over blocks."""
    shards, apart = by_device(packed)
    if shards == 1:
        return _backward(dy, packed)
    of_each = dy.reshape(dy.shape[0], shards, packed.out_features // shards)
    return jax.vmap(_backward, in_axes=(1, 0))(of_each, apart).sum(0)


def _backward(dy: Array, packed: PackedWeights) -> Array:
    count, size = blocks(packed)
    wide = split(jnp.zeros((dy.shape[0], packed.in_features), dy.dtype), packed)
    zeros = [_flat(half) for half in wide]

    def add(sums: list[Array], begin: Array) -> tuple[list[Array], None]:
        start = jnp.minimum(begin, packed.out_features - size)
        some = jax.lax.dynamic_slice_in_dim(dy, start, size, axis=1)
        # The last block may repeat outputs of the one before it.
        some = jnp.where(start + jnp.arange(size) >= begin, some, 0)
        weights = decoded(block(packed, start, size), dy.dtype)
        dots = [jnp.matmul(some, w, precision=_EXACT) for w in weights]
        return [s + d for s, d in zip(sums, dots, strict=True)], None

    sums, _ = jax.lax.scan(add, zeros, jnp.arange(count) * size)
    return merge([grouped(half, packed) for half in sums], packed)


def _flat(x: Array) -> Array:
    """Reshapes x [R, G, h] to [R, G h]; R may be 0, so reshape cannot infer the rest."""
    return x.reshape(x.shape[0], math.prod(x.shape[1:]))


def columns(packed: PackedWeights, index: Array) -> Array:
    """Returns w[:, index] [*batch, K], reading only the codes of those columns."""
    flat = index.reshape(-1)
    selected = jax.tree.map(lambda a: jnp.take(a, flat, axis=0, mode="clip"), packed)
    parts = [grouped(half, selected) for half in decoded(selected, jnp.float32)]
    inside = (flat >= 0) & (flat < packed.out_features)
    rows = jnp.where(inside[:, None], merge(parts, selected), jnp.nan)
    return rows.reshape(*index.shape, packed.in_features)


def decoded(packed: PackedWeights, dtype: Any) -> list[Array]:
    """Returns the weights [N, K], or two halves [N, G h] for 4 bits, by the columns of `split`."""
    levels = [grouped(level, packed) for level in _levels(packed.values, packed.weight)]
    if packed.zeros is not None:
        zeros = packed.zeros.astype(jnp.float32)[:, :, None]
        levels = [level - zeros for level in levels]
    scales = packed.scales.astype(jnp.float32)[:, :, None]
    weights = [(level * scales).astype(dtype) for level in levels]
    return [w.reshape(packed.values.shape) for w in weights]


def _levels(values: Array, weight: Weight) -> list[Array]:
    """Returns the levels of the bytes before zero points and scales, in float32."""
    if weight == "int8":
        return [values.astype(jnp.float32)]
    if weight == "fp8":
        return [_float8(values)]
    if weight == "nf4":
        tables, index = (_LOW_LEVELS, _HIGH_LEVELS), values.astype(jnp.int32)
        return [jnp.asarray(table)[index] for table in tables]
    halves = values & jnp.uint8(15), values >> jnp.uint8(4)
    return [half.astype(jnp.float32) - 8.0 for half in halves]


def _float8(values: Array) -> Array:
    """Decodes float8_e4m3fn bytes (OCP 8-bit floating point, 1.0): sign, 4 bits of 2^(e-7), 3.

    Works on bits, because jax 0.12.0.1 converts in a loop at a tenth of this speed.
    """
    bits = values.astype(jnp.uint32)
    size = bits & jnp.uint32(127)
    shifted = (size << jnp.uint32(20)) + jnp.uint32((127 - 7) << 23)
    normal = jax.lax.bitcast_convert_type(shifted, jnp.float32)
    number = jnp.where(size < 8, size.astype(jnp.float32) * 2.0**-9, normal)
    number = jnp.where(size == 127, jnp.nan, number)
    return jnp.where(bits >= 128, -number, number)
