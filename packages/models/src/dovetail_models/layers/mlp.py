# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Feed-forward layer, gated or plain, and activations."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from dovetail_models.layer_config import Activation, ClampedGlu, Mlp
from dovetail_models.layers.linear import project
from dovetail_models.shard import Constrain

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
