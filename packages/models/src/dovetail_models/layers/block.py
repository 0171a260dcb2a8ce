# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""One block of a transformer: attention and a feed-forward layer, each on the residual stream."""

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Float, Int

from dovetail_models.config import LatentAttention, Layer, Norm
from dovetail_models.layer_config import Experts
from dovetail_models.layers.attention import SelfAttention
from dovetail_models.layers.experts import MixtureOfExperts, Routing
from dovetail_models.layers.latent import LatentSelfAttention
from dovetail_models.layers.mlp import FeedForward
from dovetail_models.layers.norm import norm_layer
from dovetail_models.layers.rope import Angles
from dovetail_models.shard import Constrain

RESIDUAL = ("batch", "stream", None)


class Block(nnx.Module):
    """A transformer block with norms "pre", "sandwich" or "post".

    Submodules run in a `jax.named_scope` of their name: `attn_norm`, `attn`, `mlp` and so on.

    - "pre": `x + attn(attn_norm(x))`, then `x + mlp(mlp_norm(x))`.
    - "sandwich": as "pre", with `attn_post_norm` and `mlp_post_norm` on the two summands.
    - "post": `attn_norm(x + attn(x))`, then `mlp_norm(x + mlp(x))`.

    Args:
        embed: Width of the residual stream D.
        layer: Attention, feed-forward layer and placement of the norms.
        norm: Kind of every norm.
        std: Standard deviation of fresh kernels.
        rngs: Random streams; kernels are drawn from `params`.
    """

    def __init__(self, embed: int, layer: Layer, *, norm: Norm, std: float, rngs: nnx.Rngs):
        sandwich = layer.norms == "sandwich"
        self.attn_norm = norm_layer(embed, norm)
        self.attn = _attention(embed, layer, norm=norm, std=std, rngs=rngs)
        self.attn_post_norm = norm_layer(embed, norm) if sandwich else None
        self.mlp_norm = norm_layer(embed, norm)
        if isinstance(layer.mlp, Experts):
            self.mlp = MixtureOfExperts(embed, layer.mlp, std=std, rngs=rngs)
        else:
            self.mlp = FeedForward(embed, layer.mlp, std=std, rngs=rngs)
        self.mlp_post_norm = norm_layer(embed, norm) if sandwich else None
        self.norms = layer.norms

    def __call__(
        self,
        x: Float[Array, "B T D"],
        *,
        angles: Angles | None,
        attend: Callable[..., Any],
        constrain: Constrain,
        kv: Any = None,
        segment_ids: Int[Array, "B T"] | None = None,
        expert_ids: Int[Array, "B T K"] | None = None,
    ) -> tuple[Float[Array, "B T D"], Any, Routing | None]:
        """Returns the stream after the block, the cache entry after it, and the experts' use or
        None.

        Args:
            x: Residual stream [B, T, D].
            angles: cos and sin of the RoPE angles; None without RoPE.
            attend: Attention operation with positions and segments bound.
            constrain: Places activations on the mesh by logical names.
            kv: Cache entry, in the form of `attend`. None for no cache.
            segment_ids: Documents of packed rows, for the balance. 0 is padding.
            expert_ids: The experts of each token [B, T, K]. None: the router selects.
        """
        pre = self.norms != "post"
        h = _normed("attn_norm", self.attn_norm, x) if pre else x
        with jax.named_scope("attn"):
            out, kv = self.attn(h, angles=angles, attend=attend, constrain=constrain, kv=kv)
        out = _normed("attn_post_norm", self.attn_post_norm, out)
        # Otherwise the partitioner shards a scan's carry by embed and gathers activations.
        x = constrain(x + out, RESIDUAL)
        x = x if pre else _normed("attn_norm", self.attn_norm, x)
        h = _normed("mlp_norm", self.mlp_norm, x) if pre else x
        used = None
        with jax.named_scope("mlp"):
            if isinstance(self.mlp, MixtureOfExperts):
                routed = {"segment_ids": segment_ids, "expert_ids": expert_ids}
                out, used = self.mlp(h, constrain=constrain, **routed)
            else:
                out = self.mlp(h, constrain=constrain)
        out = _normed("mlp_post_norm", self.mlp_post_norm, out)
        x = constrain(x + out, RESIDUAL)
        return (x if pre else _normed("mlp_norm", self.mlp_norm, x)), kv, used


def _normed(scope: str, norm: Any, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """Returns `norm(x)`, or `x` without a norm."""
    with jax.named_scope(scope):
        return x if norm is None else norm(x)


def _attention(
    embed: int, layer: Layer, *, norm: Norm, std: float, rngs: nnx.Rngs
) -> SelfAttention | LatentSelfAttention:
    if isinstance(layer.attention, LatentAttention):
        return LatentSelfAttention(embed, layer.attention, std=std, rngs=rngs)
    return SelfAttention(embed, layer.attention, norm=norm, std=std, rngs=rngs)
