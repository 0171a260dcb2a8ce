# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""y = x w, with w dequantized whole: the formula, and what compilers for a GPU fuse themselves."""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from qwix import QArray

from dovetail_quant.codes import dequantize
from dovetail_quant.layout import PackedWeights, unpack_weights
from dovetail_quant.matmul.rows import check_rows, check_single, on_mesh, placement, wide


@dataclasses.dataclass(frozen=True)
class Reference:
    """The product whose prepared weights are the codes themselves.

    Holds the whole of w in float32 for the time of a call where the compiler does not fuse: on a
    CPU, use `Blocked`. Differentiable in x and in the scales.

    Example:

        w = jax.random.normal(jax.random.key(0), (256, 64))
        matmul = Reference()
        y = matmul(jnp.ones((3, 256)), matmul.prepare(quantize(w, Spec())))
    """

    act: Literal["int8"] | None = dataclasses.field(default=None, init=False)

    def prepare(self, w: QArray | PackedWeights) -> QArray:
        """w, checked: ValueError unless the codes are [K, N] (or a stack) in canonical form."""
        if isinstance(w, PackedWeights):
            w = unpack_weights(w)
        check_single(w)
        return w

    def codes(self, prepared: QArray) -> QArray:
        """The same."""
        return prepared

    def __call__(self, x: Float[Array, "*batch K"], prepared: QArray) -> Float[Array, "*batch N"]:
        """x w in the dtype of x, accumulated in float32, or in float64 for float64 x."""
        check_single(prepared)
        check_rows(x, prepared.qvalue.shape[-2])
        mesh, placed = placement(prepared.qvalue)
        outputs = prepared.qvalue.shape[1]
        return on_mesh(_product, x, prepared, outputs=outputs, over=(mesh, placed[1]))

    def take(self, prepared: QArray, index: Int[Array, "*batch"]) -> Float[Array, "*batch K"]:
        """w[:, index] in float32, as an embedding whose features are K looks up its rows.

        NaN for an index that is none of 0 to N - 1.
        """
        flat = index.reshape(-1)
        one = jax.tree.map(lambda a: jnp.take(a, flat, axis=1, mode="clip"), prepared)
        inside = (flat >= 0) & (flat < prepared.qvalue.shape[1])
        found = jnp.where(inside[:, None], dequantize(one).T, jnp.nan)
        return found.reshape(*index.shape, -1)


def _product(x: Array, prepared: QArray) -> Array:
    weights = dequantize(prepared).astype(wide(x.dtype))
    # HIGHEST: float32 products stay float32 on hardware that would round them.
    y = jnp.matmul(x.astype(weights.dtype), weights, precision=jax.lax.Precision.HIGHEST)
    return y.astype(x.dtype)
