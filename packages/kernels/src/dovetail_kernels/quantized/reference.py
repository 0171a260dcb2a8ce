# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""y = x w with w dequantized whole. It is the formula, and XLA for a TPU fuses it."""

import jax
import jax.numpy as jnp
from jax import Array

from dovetail_kernels.quantized.layout import PackedWeights, columns, dequantized, joined
from dovetail_kernels.quantized.rows import restored, rounded

EXACT = jax.lax.Precision.HIGHEST  # float32 products stay float32 on hardware that rounds them


def run(x: Array, packed: PackedWeights, *, activations: str | None) -> Array:
    """Computes y[M, F] = x[M, D] w[D, F].

    Args:
        x: Activations [M, D].
        packed: The weights.
        activations: "int8" rounds the rows of x to 8 bits. None keeps them.
    """
    rows, steps = rounded(x, activations=activations)
    return restored(product(columns(rows, packed), packed), steps, x.dtype)


def product(parts: list[Array], packed: PackedWeights) -> Array:
    """Multiplies rows, split by `columns` into `parts`, by w, in the dtype of the rows."""
    weights = dequantized(packed, parts[0].dtype)
    pairs = zip(parts, weights, strict=True)
    dots = [jnp.einsum("md,fd->mf", x, w, precision=EXACT) for x, w in pairs]
    return sum(dots[1:], dots[0])


def backward(dy: Array, packed: PackedWeights) -> Array:
    """Computes dx[M, D] = dy[M, F] wᵀ, in the dtype of `dy`."""
    weights = dequantized(packed, dy.dtype)
    return joined([jnp.einsum("mf,fd->md", dy, w, precision=EXACT) for w in weights], packed)
