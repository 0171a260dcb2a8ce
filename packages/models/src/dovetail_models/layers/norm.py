# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""RMS normalisation."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from dovetail_models.config import Norm
from dovetail_models.shard import named


class RMSNorm(nnx.Module):
    """`x / sqrt(mean(x²) + eps) * scale` over the last dimension (Zhang and Sennrich 2019, eq. 4).

    Computed in float32 and returned in the dtype of x, so that a float32 scale does not promote a
    bfloat16 residual stream. The product with `scale` is taken in the dtype of x, as Llama does.
    """

    def __init__(self, features: int, norm: Norm):
        self.scale = nnx.Param(jnp.ones(features), **named("norm"))
        self.eps = norm.eps

    def __call__(self, x: Float[Array, "*batch features"]) -> Float[Array, "*batch features"]:
        wide = x.astype(jnp.float32)
        inverse = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.eps)
        return (wide * inverse).astype(x.dtype) * self.scale[...].astype(x.dtype)
