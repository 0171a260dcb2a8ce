# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""y = x w with w dequantized whole: the formula."""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from qwix import QArray

from dovetail_quant.codes.codes import dequantize
from dovetail_quant.codes.layout import PackedWeights, unpack_weights
from dovetail_quant.matmul.rows import check_rows, check_single, on_mesh, placement, wide


@dataclasses.dataclass(frozen=True)
class Reference:
    """The product whose prepared weights are the codes themselves.

    Holds the whole of w in float32 during a call unless the compiler fuses; on a CPU, use
    `Blocked`. Differentiable in x and in the scales.

    Example:

        >>> from dovetail_quant import Spec
        >>> from dovetail_quant.codes.codes import quantize
        >>> w = jax.random.normal(jax.random.key(0), (256, 64))
        >>> matmul = Reference()
        >>> matmul(jnp.ones((3, 256)), matmul.prepare(quantize(w, Spec()))).shape
        (3, 64)
    """

    act: Literal["int8"] | None = dataclasses.field(default=None, init=False)

    def prepare(self, w: QArray | PackedWeights) -> QArray:
        """Returns w after a check: ValueError unless the codes are [K, N] (or a stack) in canonical
        form.
        """
        if isinstance(w, PackedWeights):
            w = unpack_weights(w)
        check_single(w)
        return w

    def codes(self, prepared: QArray) -> QArray:
        """Returns the codes unchanged."""
        return prepared

    def __call__(self, x: Float[Array, "*batch K"], prepared: QArray) -> Float[Array, "*batch N"]:
        """Returns x w in the dtype of x, accumulated in float32, or in float64 for float64 x."""
        check_single(prepared)
        check_rows(x, prepared.qvalue.shape[-2])
        mesh, placed = placement(prepared.qvalue)
        outputs = prepared.qvalue.shape[1]
        return on_mesh(formula, x, prepared, outputs=outputs, over=(mesh, placed[1]))

    def take(self, prepared: QArray, index: Int[Array, "*batch"]) -> Float[Array, "*batch K"]:
        """Returns w[:, index] in float32: the rows of an embedding with K features.

        NaN for an index outside 0 to N - 1.
        """
        flat = index.reshape(-1)
        selected = jax.tree.map(lambda a: jnp.take(a, flat, axis=1, mode="clip"), prepared)
        inside = (flat >= 0) & (flat < prepared.qvalue.shape[1])
        rows = jnp.where(inside[:, None], dequantize(selected).T, jnp.nan)
        return rows.reshape(*index.shape, -1)


def formula(x: Array, prepared: QArray) -> Array:
    """Returns x [*batch, K] times dequantized codes, in the dtype of x."""
    weights = dequantize(prepared).astype(wide(x.dtype))
    # HIGHEST: float32 products stay float32 on hardware that would round them.
    y = jnp.matmul(x.astype(weights.dtype), weights, precision=jax.lax.Precision.HIGHEST)
    return y.astype(x.dtype)
