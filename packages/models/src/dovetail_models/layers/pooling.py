# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Learned pooling: reduces the vectors of a sequence to one."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from dovetail_models.config.decoder import Norm
from dovetail_models.config.encoder import AttentionPool, TokenPool
from dovetail_models.layers.linear import project
from dovetail_models.layers.tokenwise import FeedForward, norm_layer
from dovetail_models.placing.shard import Constrain, named


def pooler_layer(
    embed: int,
    pool: TokenPool | AttentionPool | None,
    *,
    norm: Norm,
    std: float,
    rngs: nnx.Rngs,
) -> "TokenPooler | AttentionPooler | None":
    """Returns the layer for `pool`; None for None.

    Args:
        embed: Width of a token's vector.
        pool: Kind of pooling.
        norm: Norm of an `AttentionPooler`.
        std: Standard deviation of fresh kernels.
        rngs: Random streams; kernels are drawn from `params`.
    """
    if isinstance(pool, TokenPool):
        return TokenPooler(embed, pool, std=std, rngs=rngs)
    if isinstance(pool, AttentionPool):
        return AttentionPooler(embed, pool, norm=norm, std=std, rngs=rngs)
    return None


class TokenPooler(nnx.Module):
    """`tanh(dense(x[:, 0]))`; without tanh, or of the last token, as `TokenPool` says.

    Args:
        embed: Width of a token's vector.
        pool: Width of the result, token and tanh.
        std: Standard deviation of the fresh kernel.
        rngs: Random streams; the kernel is drawn from `params`.
    """

    def __init__(self, embed: int, pool: TokenPool, *, std: float, rngs: nnx.Rngs):
        size = embed, pool.width
        self.dense = project(size, ("embed", "pooled"), bias=True, std=std, rngs=rngs)
        self.config = pool

    def __call__(
        self, x: Float[Array, "b t embed"], *, constrain: Constrain
    ) -> Float[Array, "b width"]:
        y = self.dense(x[:, -1 if self.config.last else 0])
        return jnp.tanh(y) if self.config.tanh else y


class AttentionPooler(nnx.Module):
    """`y + mlp(norm(y))` with y the attention output of the learned query `probe` (2106.04560, sec.
    3.4).

    All rows share the query, so scores are [rows, heads, tokens] and no attention operation of a
    decoder is used.

    Args:
        embed: Width of a token's vector, and of the result.
        pool: Heads and feed-forward layer.
        norm: Kind of the norm.
        std: Standard deviation of fresh kernels.
        rngs: Random streams; kernels are drawn from `params`.
    """

    def __init__(self, embed: int, pool: AttentionPool, *, norm: Norm, std: float, rngs: nnx.Rngs):
        head = embed // pool.heads
        into = functools.partial(project, bias=True, std=std, rngs=rngs)
        self.probe = nnx.Param(
            nnx.initializers.normal(std)(rngs.params(), (embed,), jnp.float32), **named("embed")
        )
        self.q = into((embed, embed), ("embed", "heads"), units=(1, head))
        self.k = into((embed, embed), ("embed", "heads"), units=(1, head))
        self.v = into((embed, embed), ("embed", "heads"), units=(1, head))
        self.o = into((embed, embed), ("heads", "embed"), units=(head, 1))
        self.norm = norm_layer(embed, norm)
        self.mlp = FeedForward(embed, pool.mlp, std=std, rngs=rngs)
        self.config = pool

    def __call__(
        self, x: Float[Array, "b t embed"], *, constrain: Constrain
    ) -> Float[Array, "b embed"]:
        heads = self.config.heads
        q = self.q(self.probe[...].astype(x.dtype)).reshape(heads, -1)
        k = self.k(x).reshape(*x.shape[:2], heads, -1)
        v = self.v(x).reshape(*x.shape[:2], heads, -1)
        scores = jnp.einsum("nh,btnh->bnt", q, k, preferred_element_type=jnp.float32)
        weights = jax.nn.softmax(scores * q.shape[-1] ** -0.5, axis=-1).astype(x.dtype)
        seen = jnp.einsum("bnt,btnh->bnh", weights, v, preferred_element_type=jnp.float32)
        y = self.o(seen.astype(x.dtype).reshape(x.shape[0], 1, -1))
        return (y + self.mlp(self.norm(y), constrain=constrain))[:, 0]
