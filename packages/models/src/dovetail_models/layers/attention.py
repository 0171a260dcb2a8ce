# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The attention layer: projections around an attention operation that the caller may replace."""

import functools
from collections.abc import Callable
from typing import Any

from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from dovetail_models.config import Attention, Norm
from dovetail_models.layers.linear import project
from dovetail_models.layers.norm import RMSNorm
from dovetail_models.layers.rope import Angles, rotate
from dovetail_models.shard import Constrain


class SelfAttention(nnx.Module):
    """Grouped-query attention of a sequence over itself, rotated by RoPE."""

    def __init__(self, embed: int, attention: Attention, *, norm: Norm, std: float, rngs: nnx.Rngs):
        head = attention.head_dim
        query, shared = attention.heads * head, attention.kv_heads * head
        linear = functools.partial(project, bias=attention.bias, std=std, rngs=rngs)
        self.q = linear((embed, query), ("embed", "heads"), units=(1, head))
        self.k = linear((embed, shared), ("embed", "kv_heads"), units=(1, head))
        self.v = linear((embed, shared), ("embed", "kv_heads"), units=(1, head))
        self.o = linear((query, embed), ("heads", "embed"), units=(head, 1))
        self.q_norm = RMSNorm(head, norm) if attention.qk_norm else None
        self.k_norm = RMSNorm(head, norm) if attention.qk_norm else None
        self.config = attention

    def __call__(
        self,
        x: Float[Array, "b t embed"],
        *,
        turn: Angles,
        attend: Callable[..., Any],
        constrain: Constrain,
        kv: Any = None,
    ) -> tuple[Float[Array, "b t embed"], Any]:
        """(output, the cache entry after this call). `attend` has the signature of
        `dovetail_models.reference.attention`, positions and segments bound."""
        c = self.config
        q = self.q(x).reshape(*x.shape[:2], c.heads, c.head_dim)
        k = self.k(x).reshape(*x.shape[:2], c.kv_heads, c.head_dim)
        v = self.v(x).reshape(*x.shape[:2], c.kv_heads, c.head_dim)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q = constrain(rotate(q, turn), ("batch", "seq", "heads", None))
        k = constrain(rotate(k, turn), ("batch", "seq", "kv_heads", None))
        v = constrain(v, ("batch", "seq", "kv_heads", None))
        scale = c.head_dim**-0.5
        options = {"window": c.window, "soft_cap": None, "scale": scale, "sinks": None}
        if kv is None:
            out = attend(q, k, v, **options)
        else:
            out, kv = attend(q, k, v, kv=kv, **options)
        out = checkpoint_name(out.reshape(*x.shape[:2], c.heads * c.head_dim), "attn_out")
        return self.o(out), kv
