# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A decoder small enough to check by hand, for tests and examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int


class TinyDecoder(nnx.Module):
    """A causal language model of attention layers: the interface `Decoder` and no more.

    Args:
        vocab_size: Number of token ids.
        width: Width of the features.
        depth: Number of layers.
        soft_cap: Bound of the logits, or None.
        rngs: Random streams for the parameters.

    Example:

        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from dovetail_tune.testing import TinyDecoder
        >>> TinyDecoder(rngs=nnx.Rngs(0)).features(jnp.array([[1, 2]]))[0].shape
        (1, 2, 16)
    """

    def __init__(
        self,
        *,
        vocab_size: int = 32,
        width: int = 16,
        depth: int = 1,
        soft_cap: float | None = None,
        rngs: nnx.Rngs,
    ) -> None:
        self.embed = nnx.Embed(vocab_size, width, rngs=rngs)
        self.layers = nnx.List(_Layer(width, rngs=rngs) for _ in range(depth))
        self.norm = nnx.RMSNorm(width, rngs=rngs)
        self.out = nnx.Linear(width, vocab_size, use_bias=False, rngs=rngs)
        self.soft_cap = soft_cap

    def features(
        self,
        tokens: Int[Array, "B S"],
        *,
        positions: Int[Any, "B S"] | None = None,
        segment_ids: Int[Any, "B S"] | None = None,
        attention: Callable[..., Any] | None = None,
    ) -> tuple[Float[Array, "B S D"], None]:
        """Returns the features before the head [B, S, D], and None for the cache.

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
        x = self.embed(tokens)
        rates = 10.0 ** -jnp.linspace(0, 2, x.shape[-1] // 2, dtype=x.dtype)
        angles = jnp.asarray(positions)[..., None] * rates[None, None]
        x = x + jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)
        for layer in self.layers:
            x = layer(x, jnp.asarray(positions), jnp.asarray(segment_ids), attention or _attention)
        return self.norm(x), None

    def head(self, x: Float[Array, "*n D"]) -> Float[Array, "*n V"]:
        """Returns logits in float32."""
        logits = self.out(x).astype(jnp.float32)
        return logits if self.soft_cap is None else self.soft_cap * jnp.tanh(logits / self.soft_cap)

    def head_weight(self) -> tuple[Float[Array, "D V"], float | None]:
        """Returns the head's matrix and the soft cap."""
        return self.out.kernel[...], self.soft_cap


class _Layer(nnx.Module):
    def __init__(self, width: int, *, rngs: nnx.Rngs) -> None:
        self.qkv = nnx.Linear(width, 3 * width, use_bias=False, rngs=rngs)
        self.up = nnx.Linear(width, 2 * width, rngs=rngs)
        self.down = nnx.Linear(2 * width, width, rngs=rngs)

    def __call__(self, x: Array, positions: Array, segment_ids: Array, attend: Any) -> Array:
        q, k, v = jnp.split(self.qkv(x)[:, :, None], 3, axis=-1)
        where = {"positions": positions, "segment_ids": segment_ids}
        x = x + attend(q, k, v, causal=True, **where)[:, :, 0]
        return x + self.down(jax.nn.silu(self.up(x)))


def _attention(
    q: Array, k: Array, v: Array, *, causal: bool, positions: Array, segment_ids: Array
) -> Array:
    """Attention of one head, [B, S, 1, D]; padding (segment 0) attends to itself."""
    visible = segment_ids[:, :, None] == segment_ids[:, None]
    if causal:
        visible &= positions[:, :, None] >= positions[:, None]
    scores = jnp.einsum("bsnd,btnd->bnst", q, k) * q.shape[-1] ** -0.5
    weights = jax.nn.softmax(jnp.where(visible[:, None], scores, -1e30), axis=-1)
    return jnp.einsum("bnst,btnd->bsnd", weights, v)
