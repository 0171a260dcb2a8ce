# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Self-attention layer: projections around a replaceable attention operation."""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from dovetail_models.config import Attention, Norm
from dovetail_models.layers.linear import project
from dovetail_models.layers.norm import norm_layer
from dovetail_models.layers.rope import Angles, rotate
from dovetail_models.shard import Constrain, named


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
        self.config = attention

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
            attend: An operation with the signature of `dovetail_models.reference.attention`,
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
        options = {"window": c.window, "soft_cap": c.soft_cap, "scale": c.softmax_scale}
        if kv is None:
            out = attend(q, k, v, sinks=sinks, **options)
        else:
            out, kv = attend(q, k, v, sinks=sinks, kv=kv, **options)
        out = out.reshape(*x.shape[:2], c.heads * c.head_dim)
        return self.o(out), kv
