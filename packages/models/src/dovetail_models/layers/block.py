# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""One block of a transformer: attention and a feed-forward layer, each on the residual stream."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from dovetail_models.config.decoder import Attention, LatentAttention, Layer, Norm
from dovetail_models.config.layer import Experts
from dovetail_models.layers.experts import MixtureOfExperts, Routing
from dovetail_models.layers.latent import LatentSelfAttention
from dovetail_models.layers.linear import project
from dovetail_models.layers.rope import Angles, rotate
from dovetail_models.layers.tokenwise import FeedForward, norm_layer
from dovetail_models.placing.shard import Constrain, named

RESIDUAL = ("batch", "stream", None)


class SelfAttention(nnx.Module):
    """Grouped-query self-attention, with RoPE if the config has one.

    Args:
        embed: Width of the residual stream.
        attention: Heads, their width, biases and options.
        norm: Norm of q and k, used with `qk_norm`.
        std: Standard deviation of fresh kernels.
        rngs: Random streams; kernels are drawn from `params`.
    """

    def __init__(self, embed: int, attention: Attention, *, norm: Norm, std: float, rngs: nnx.Rngs):
        head = attention.head_dim
        query, shared = attention.heads * head, attention.kv_heads * head
        linear = functools.partial(project, bias=attention.qkv_bias, std=std, rngs=rngs)
        self.q = linear((embed, query), ("embed", "heads"), units=(1, head))
        self.k = linear((embed, shared), ("embed", "kv_heads"), units=(1, head))
        self.v = linear((embed, shared), ("embed", "kv_heads"), units=(1, head))
        self.o = project(
            (query, embed),
            ("heads", "embed"),
            units=(head, 1),
            bias=attention.out_bias,
            std=std,
            rngs=rngs,
        )
        self.q_norm = norm_layer(head, norm) if attention.qk_norm else None
        self.k_norm = norm_layer(head, norm) if attention.qk_norm else None
        zeros = jnp.zeros(attention.heads)
        self.sinks = nnx.Param(zeros, **named("heads")) if attention.sinks else None
        self.config, self.scale = attention, attention.softmax_scale

    def __call__(
        self,
        x: Float[Array, "b t embed"],
        *,
        angles: Angles | None,
        attend: Callable[..., Any],
        constrain: Constrain,
        kv: Any = None,
    ) -> tuple[Float[Array, "b t embed"], Any]:
        """Returns the output and the cache entry after this call.

        Args:
            x: Input [b, t, embed].
            angles: cos and sin of the RoPE angles; None without RoPE.
            attend: An operation with the signature of `dovetail_models.model.reference.attention`,
                positions and segments bound.
            constrain: Places activations on the mesh by logical names.
            kv: Cache entry, in the form of `attend`. None for no cache.
        """
        c = self.config
        q = self.q(x).reshape(*x.shape[:2], c.heads, c.head_dim)
        k = self.k(x).reshape(*x.shape[:2], c.kv_heads, c.head_dim)
        v = self.v(x).reshape(*x.shape[:2], c.kv_heads, c.head_dim)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if angles is not None and c.rope is not None:
            q = rotate(q, angles, interleaved=c.rope.interleaved)
            k = rotate(k, angles, interleaved=c.rope.interleaved)
        q = constrain(q, ("batch", "seq", "heads", None))
        k = constrain(k, ("batch", "seq", "kv_heads", None))
        v = constrain(v, ("batch", "seq", "kv_heads", None))
        sinks = None if self.sinks is None else self.sinks[...]
        options = {"window": c.window, "soft_cap": c.soft_cap, "scale": self.scale}
        if kv is None:
            out = attend(q, k, v, sinks=sinks, **options)
        else:
            out, kv = attend(q, k, v, sinks=sinks, kv=kv, **options)
        out = out.reshape(*x.shape[:2], c.heads * c.head_dim)
        return self.o(out), kv


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
