# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""y = x w, a block of outputs at a time, decoded where it is used.

The cost of a product with few rows is reading the weights. Decoded whole they are written and read
again as float32, eight times the bytes of four bits. A block that stays in the core's cache costs
its codes alone. The same loop gives dx = dy w transposed.

XLA's CPU backend multiplies a block by three routes of unlike speed, so rows and groups choose one:
a dot per group for one row, one dot with the inputs in front for more rows, and as it lies if all
inputs are one group (4096 x 4096 int4 by 128 at one row: 2.9, 4.9 and 14 ms of processor time; at
64 rows 50, 20 and 31). The gradient has the last two alone (at one row 4.8 and 14).
"""

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from qwix import QArray

from dovetail_quant.codes import NF4
from dovetail_quant.layout import Packed, merge, outputs, split
from dovetail_quant.matmul import rows
from dovetail_quant.spec import Weight

_EXACT = jax.lax.Precision.HIGHEST
# Both levels of a byte: one look-up each takes half the time of a tree of 15 selects at 16 rows.
_LOW_LEVELS = np.array(NF4 * 16, np.float32)
_HIGH_LEVELS = np.repeat(np.array(NF4, np.float32), 16)


@dataclasses.dataclass(frozen=True)
class Blocked:
    """The product for all codes and numbers of rows: no float copy of a weight exists.

    |y - x w| <= eps (K + 1) sum |x||w| with eps of float32 (float64 for float64 x), before y is
    rounded to the dtype of x. The gradient is that of x alone.

    Example:

        w = jax.random.normal(jax.random.key(0), (256, 64))
        matmul = Blocked()
        prepared = matmul.prepare(quantize(w, Spec(weight="int4", group=32)))
        y = jax.jit(matmul)(jnp.ones((3, 256)), prepared)
    """

    act: Literal["int8"] | None = dataclasses.field(default=None, init=False)

    def prepare(self, w: QArray) -> Packed:
        """The codes [K, N] as blocks."""
        return rows.prepare(w)

    def codes(self, prepared: Packed) -> QArray:
        """The inverse, bit for bit."""
        return rows.codes(prepared)

    def __call__(self, x: Float[Array, "*batch K"], prepared: Packed) -> Float[Array, "*batch N"]:
        """x w in the dtype of x.

        Raises:
            TypeError: x is not floating point.
            ValueError: its last axis is not K, or a gradient in the weights is asked.
        """
        return rows.call(forward, backward, x, prepared)

    def take(self, prepared: Packed, index: Int[Array, "*batch"]) -> Float[Array, "*batch K"]:
        """w[:, index] in float32, as an embedding whose features are K looks up its rows.

        NaN for an index that is none of 0 to N - 1.
        """
        return columns(prepared, index)


def forward(x: Array, packed: Packed) -> Array:
    """y [R, N] = x [R, K] w, in the dtype of x."""
    parts = split(x, packed)

    def block(one: Packed) -> Array:
        pairs = zip(parts, decoded(one, x.dtype), strict=True)
        dots = [_dot(part, weights) for part, weights in pairs]
        return sum(dots[1:], dots[0])

    return outputs(jax.lax.map(block, packed), packed)


def backward(dy: Array, packed: Packed) -> Array:
    """dx [R, K] = dy [R, N] w transposed, summed over blocks."""
    count, _, size = packed.scales.shape
    padded = jnp.pad(dy, ((0, 0), (0, count * size - packed.outputs)))
    blocks = padded.reshape(-1, count, size).transpose(1, 0, 2)
    zeros = split(jnp.zeros((dy.shape[0], packed.inputs), dy.dtype), packed)

    def add(sums: list[Array], one: tuple[Array, Packed]) -> tuple[list[Array], None]:
        weights = decoded(one[1], dy.dtype)
        dots = [_transposed_dot(one[0], w) for w in weights]
        return [s + d for s, d in zip(sums, dots, strict=True)], None

    sums, _ = jax.lax.scan(add, zeros, (blocks, packed))
    return merge(sums, packed)


def columns(packed: Packed, index: Array) -> Array:
    """w[:, index] [*batch, K]: of each only its own codes are read."""
    flat, size = index.reshape(-1), packed.scales.shape[-1]
    block, place = flat // size, flat % size

    def gather(a: Any) -> Any:
        return None if a is None else jnp.swapaxes(a[block, :, place], 0, 1)

    one = dataclasses.replace(
        packed,
        values=gather(packed.values),
        scales=gather(packed.scales),
        zeros=gather(packed.zeros),
    )
    parts = [jnp.swapaxes(part, 0, 1) for part in decoded(one, jnp.float32)]
    found = merge(parts, packed)
    inside = (flat >= 0) & (flat < packed.outputs)
    return jnp.where(inside[:, None], found, jnp.nan).reshape(*index.shape, packed.inputs)


def decoded(block: Packed, dtype: Any) -> list[Array]:
    """The weights [G, n, g] of one block, or two halves [G, n, h] of 4-bit ones, as `split`s."""
    levels = _levels(block.values, block.weight)
    if block.zeros is not None:
        zeros = block.zeros.astype(jnp.float32)[:, :, None]
        levels = [level - zeros for level in levels]
    scales = block.scales.astype(jnp.float32)[:, :, None]
    return [(level * scales).astype(dtype) for level in levels]


def _dot(x: Array, w: Array) -> Array:
    """x [R, G, h] times w [G, n, h]: [R, n]."""
    count, (groups, size, width) = x.shape[0], w.shape
    if groups == 1:
        return jnp.einsum("rh,nh->rn", x[:, 0], w[0], precision=_EXACT)
    if count == 1:
        return jnp.sum(jnp.einsum("rgh,gnh->grn", x, w, precision=_EXACT), axis=0)
    inputs_first = w.transpose(0, 2, 1).reshape(groups * width, size)
    return jnp.matmul(x.reshape(count, groups * width), inputs_first, precision=_EXACT)


def _transposed_dot(dy: Array, w: Array) -> Array:
    """dy [R, n] times w [G, n, h]: [R, G, h]."""
    groups, size, width = w.shape
    if groups == 1:
        return jnp.matmul(dy, w[0], precision=_EXACT)[:, None]
    inputs_first = w.transpose(0, 2, 1).reshape(groups * width, size)
    dx = jnp.einsum("rn,kn->rk", dy, inputs_first, precision=_EXACT)
    return dx.reshape(dy.shape[0], groups, width)


def _levels(values: Array, weight: Weight) -> list[Array]:
    """What the bytes mean before zero points and scales, in float32."""
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
    """float8_e4m3fn from its bytes (OCP 8-bit floating point, 1.0): sign, 4 bits of 2^(e-7), 3.

    By bits, because jax 0.12.0.1 converts in a loop at a tenth of this speed.
    """
    bits = values.astype(jnp.uint32)
    size = bits & jnp.uint32(127)
    shifted = (size << jnp.uint32(20)) + jnp.uint32((127 - 7) << 23)
    normal = jax.lax.bitcast_convert_type(shifted, jnp.float32)
    number = jnp.where(size < 8, size.astype(jnp.float32) * 2.0**-9, normal)
    number = jnp.where(size == 127, jnp.nan, number)
    return jnp.where(bits >= 128, -number, number)
