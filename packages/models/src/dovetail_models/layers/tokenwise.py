# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Layers that see each token alone: RMSNorm, LayerNorm, and the feed-forward layer.

Norms compute in float32 and return the dtype of their input, so a float32 scale does not promote a
bfloat16 residual stream.
"""

import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from dovetail_models.config.decoder import Norm
from dovetail_models.config.layer import Activation, ClampedGlu, Mlp
from dovetail_models.layers.linear import project
from dovetail_models.placing.shard import Constrain, named


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


_FUNCTIONS = {
    "silu": jax.nn.silu,
    "gelu": functools.partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
    "relu": jax.nn.relu,
}


def activate(x: Float[Array, "*batch f"], activation: Activation) -> Float[Array, "*batch f"]:
    """Applies the activation. "gelu" is exact, "gelu_tanh" approximate (1606.08415, section 2)."""
    return _FUNCTIONS[activation](x)


def glu(
    gate: Float[Array, "*batch f"],
    up: Float[Array, "*batch f"],
    activation: Activation | ClampedGlu,
) -> Float[Array, "*batch f"]:
    """Returns `activation(gate) * up` (Shazeer 2020, eq. 6), or gpt-oss's clamped form.

    Args:
        gate: Gate values before the activation [*batch, f].
        up: Linear values [*batch, f].
        activation: Name of the activation, or `ClampedGlu`.
    """
    if not isinstance(activation, ClampedGlu):
        return activate(gate, activation) * up
    gate = jnp.minimum(gate, activation.limit)
    up = jnp.clip(up, -activation.limit, activation.limit)
    return (up + 1) * gate * jax.nn.sigmoid(activation.alpha * gate)


class FeedForward(nnx.Module):
    """`down(activation(gate(x)) * up(x))`, or `down(activation(up(x)))` without a gate.

    Args:
        embed: Width of the residual stream.
        mlp: Hidden units, activation, gate and biases.
        std: Standard deviation of fresh kernels.
        rngs: Random streams; kernels are drawn from `params`.
    """

    def __init__(self, embed: int, mlp: Mlp, *, std: float, rngs: nnx.Rngs):
        linear = functools.partial(project, bias=mlp.bias, std=std, rngs=rngs)
        self.gate = linear((embed, mlp.hidden), ("embed", "mlp")) if mlp.gated else None
        self.up = linear((embed, mlp.hidden), ("embed", "mlp"))
        self.down = linear((mlp.hidden, embed), ("mlp", "embed"))
        self.activation: Activation = mlp.activation

    def __call__(
        self, x: Float[Array, "b t embed"], *, constrain: Constrain
    ) -> Float[Array, "b t embed"]:
        up = self.up(x)
        if self.gate is None:
            hidden = activate(up, self.activation)
        else:
            hidden = glu(self.gate(x), up, self.activation)
        hidden = checkpoint_name(hidden, "mlp_hidden")
        return self.down(constrain(hidden, ("batch", "seq", "mlp")))
