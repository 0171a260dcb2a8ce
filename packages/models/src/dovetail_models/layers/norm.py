# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Normalisation over the last dimension: RMSNorm and LayerNorm.

Both compute in float32 and return the dtype of their input, so a float32 scale does not promote a
bfloat16 residual stream.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from dovetail_models.config import Norm
from dovetail_models.shard import named


def norm_layer(features: int, norm: Norm) -> "RMSNorm | LayerNorm":
    """Returns the layer for `norm`."""
    return RMSNorm(features, norm) if norm.kind == "rms" else LayerNorm(features, norm)


class RMSNorm(nnx.Module):
    """`x / sqrt(mean(x²) + eps) * scale` (Zhang and Sennrich 2019, eq. 4).

    The product with `scale` is computed in the dtype of x, as in Llama, or in float32 if the norm
    is `wide`. With `unit_offset` the parameter is the scale minus 1.
    """

    def __init__(self, features: int, norm: Norm):
        fresh = jnp.zeros(features) if norm.unit_offset else jnp.ones(features)
        self.scale = nnx.Param(fresh, **named("norm"))
        self.config = norm

    def __call__(self, x: Float[Array, "*batch features"]) -> Float[Array, "*batch features"]:
        wide = x.astype(jnp.float32)
        inverse = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.config.eps)
        product = jnp.float32 if self.config.wide else x.dtype
        scale = self.scale[...].astype(product)
        scale = scale + 1 if self.config.unit_offset else scale
        return ((wide * inverse).astype(product) * scale).astype(x.dtype)


class LayerNorm(nnx.Module):
    """`(x - mean(x)) / sqrt(var(x) + eps) * scale + bias` (1607.06450, eq. 4)."""

    def __init__(self, features: int, norm: Norm):
        self.scale = nnx.Param(jnp.ones(features), **named("norm"))
        self.bias = nnx.Param(jnp.zeros(features), **named("norm"))
        self.config = norm

    def __call__(self, x: Float[Array, "*batch features"]) -> Float[Array, "*batch features"]:
        wide = x.astype(jnp.float32)
        centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
        variance = jnp.mean(centred * centred, axis=-1, keepdims=True)
        normed = centred * jax.lax.rsqrt(variance + self.config.eps)
        scale, bias = self.scale[...].astype(jnp.float32), self.bias[...].astype(jnp.float32)
        return (normed * scale + bias).astype(x.dtype)
