# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A decoder small enough to check by hand, with the interface of `lm_loss`."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int


class TinyDecoder(nnx.Module):
    """One attention layer and one MLP per depth, with sinusoidal positions and an untied head.

    For tests and benchmarks of training code: it respects positions, segments and causality.

    Args:
        vocab_size: Size of the vocabulary.
        width: Width of the residual stream.
        depth: Number of layers.
        rngs: Random streams for the parameters.
    """

    def __init__(self, *, vocab_size: int, width: int, depth: int, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(vocab_size, width, rngs=rngs)
        self.layers = nnx.List([_Layer(width, rngs=rngs) for _ in range(depth)])
        self.norm = nnx.RMSNorm(width, rngs=rngs)
        self.out = nnx.Linear(width, vocab_size, use_bias=False, rngs=rngs)

    def features(
        self,
        tokens: Int[Array, "B S"],
        *,
        positions: Int[Array, "B S"] | None = None,
        segment_ids: Int[Array, "B S"] | None = None,
        attention: Callable[..., Any] | None = None,
    ) -> tuple[Float[Array, "B S D"], None]:
        """Returns the activations before the head [B, S, D], and None for the cache.

        Args:
            tokens: i32[B, S].
            positions: i32[B, S]. Default: the index in the row.
            segment_ids: i32[B, S]. Default: one segment.
            attention: Attention to use. Default: a reference.
        """
        if positions is None:
            positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        if segment_ids is None:
            segment_ids = jnp.ones_like(tokens)
        x = self.embed(tokens) + _sinusoids(positions, self.embed.features).astype(
            self.embed.embedding.dtype
        )
        for layer in self.layers:
            x = layer(x, positions, segment_ids, attention or _attention)
        return x, None

    def head(self, x: Float[Array, "*B D"]) -> Float[Array, "*B V"]:
        """Returns logits in float32."""
        return self.out(self.norm(x)).astype(jnp.float32)


class _Layer(nnx.Module):
    def __init__(self, width: int, *, rngs: nnx.Rngs) -> None:
        self.norm = nnx.RMSNorm(width, rngs=rngs)
        self.qkv = nnx.Linear(width, 3 * width, use_bias=False, rngs=rngs)
        self.up = nnx.Linear(width, 2 * width, rngs=rngs)
        self.down = nnx.Linear(2 * width, width, rngs=rngs)

    def __call__(self, x: Array, positions: Array, segment_ids: Array, attention: Any) -> Array:
        q, k, v = jnp.split(self.qkv(self.norm(x))[:, :, None], 3, axis=-1)
        x = (
            x
            + attention(q, k, v, causal=True, positions=positions, segment_ids=segment_ids)[:, :, 0]
        )
        return x + self.down(jax.nn.silu(self.up(x)))


def _attention(
    q: Float[Array, "B S 1 D"],
    k: Float[Array, "B S 1 D"],
    v: Float[Array, "B S 1 D"],
    *,
    causal: bool,
    positions: Int[Array, "B S"],
    segment_ids: Int[Array, "B S"],
) -> Float[Array, "B S 1 D"]:
    seen = segment_ids[:, :, None] == segment_ids[:, None, :]
    if causal:
        seen &= positions[:, :, None] >= positions[:, None, :]
    scores = jnp.einsum("bsnd,btnd->bnst", q, k) / q.shape[-1] ** 0.5
    weights = jax.nn.softmax(jnp.where(seen[:, None], scores, -1e9), axis=-1)
    return jnp.einsum("bnst,btnd->bsnd", weights, v)


def _sinusoids(positions: Int[Array, "B S"], width: int) -> Float[Array, "B S D"]:
    rates = jnp.exp(-jnp.arange(width // 2, dtype=jnp.float32) * 0.5)
    angles = positions[..., None].astype(jnp.float32) * rates
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)
