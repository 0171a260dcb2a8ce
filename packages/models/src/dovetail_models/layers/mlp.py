# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The gated feed-forward layer."""

import functools

import jax
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from dovetail_models.config import Mlp
from dovetail_models.layers.linear import project
from dovetail_models.shard import Constrain


class GatedMlp(nnx.Module):
    """`down(silu(gate(x)) * up(x))`: SwiGLU (Shazeer 2020, eq. 6)."""

    def __init__(self, embed: int, mlp: Mlp, *, std: float, rngs: nnx.Rngs):
        linear = functools.partial(project, bias=mlp.bias, std=std, rngs=rngs)
        self.gate = linear((embed, mlp.hidden), ("embed", "mlp"))
        self.up = linear((embed, mlp.hidden), ("embed", "mlp"))
        self.down = linear((mlp.hidden, embed), ("mlp", "embed"))

    def __call__(
        self, x: Float[Array, "b t embed"], *, constrain: Constrain
    ) -> Float[Array, "b t embed"]:
        hidden = jax.nn.silu(self.gate(x)) * self.up(x)
        hidden = checkpoint_name(hidden, "mlp_hidden")
        return self.down(constrain(hidden, ("batch", "seq", "mlp")))
