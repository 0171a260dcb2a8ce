# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""y = x w, with w dequantized whole. The formula, and what a GPU or TPU compiler fuses itself."""

import jax
import jax.numpy as jnp
from jax import Array

from dovetail_kernels.quantized.layout import PackedWeights, columns, dequantized, joined
from dovetail_kernels.quantized.rows import restored, rounded

_EXACT = jax.lax.Precision.HIGHEST  # float32 products stay float32 on hardware that rounds them


def run(x: Array, packed: PackedWeights, *, activations: str | None) -> Array:
    """y[M, F] = x[M, D] w[D, F]."""
    rows, steps = rounded(x, activations=activations)
    return restored(product(columns(rows, packed), packed), steps, x.dtype)


def product(parts: list[Array], packed: PackedWeights) -> Array:
    """Rows w in the dtype of rows, of which `columns` gave the parts."""
    weights = dequantized(packed, parts[0].dtype)
    pairs = zip(parts, weights, strict=True)
    dots = [jnp.einsum("md,fd->mf", part, w, precision=_EXACT) for part, w in pairs]
    return sum(dots[1:], dots[0])


def backward(dy: Array, packed: PackedWeights) -> Array:
    """dx[M, D] = dy[M, F] w transposed, in the dtype of `dy`."""
    weights = dequantized(packed, dy.dtype)
    return joined([jnp.einsum("mf,fd->md", dy, w, precision=_EXACT) for w in weights], packed)
