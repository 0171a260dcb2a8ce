# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A small decoder for tests and examples, in the form of `dovetail_infer.Decoder`.

RMSNorm, rope angles, grouped queries and SwiGLU, as in Llama, with the options that make caches
differ: windows by layer, sinks, soft caps, latent keys and experts.

Shape letters: B rows, T tokens, D embed, V vocabulary, n query heads, k key heads, h width of a
head, g width of a value, E experts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import DTypeLike, Float, Int

_EPS = 1e-6
_THETA = 1e4
_EXPERTS_OF_A_TOKEN = 2


class TinyDecoder(nnx.Module):
    """A causal language model with random weights.

    Args:
        vocab_size: Number of token ids. The default is that of `ByteTokenizer`.
        embed: Width of the residual stream, a multiple of twice the heads.
        depth: Number of layers.
        heads: Query heads.
        kv_heads: Key heads, a divisor of heads.
        windows: Window of each layer, repeated over the depth. None: all keys.
        sinks: Whether each head has a sink logit.
        soft_cap: Replaces attention logits by `c tanh(logit / c)`. None: no cap.
        latent: The keys hold the values, which are half as wide. There is one key head.
        experts: Number of experts of each layer, of which a token uses two. 0: one SwiGLU.
        dtype: dtype of parameters and activations.
        rngs: Random streams; parameters are drawn from `params`.

    Example:

        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from dovetail_infer.testing import TinyDecoder
        >>> model = TinyDecoder(rngs=nnx.Rngs(0))
        >>> model(jnp.array([[72, 105]])).shape
        (1, 2, 258)
    """

    def __init__(
        self,
        *,
        vocab_size: int = 258,
        embed: int = 32,
        depth: int = 2,
        heads: int = 4,
        kv_heads: int = 2,
        windows: Sequence[int | None] = (None,),
        sinks: bool = False,
        soft_cap: float | None = None,
        latent: bool = False,
        experts: int = 0,
        dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        def normal(*shape: int) -> nnx.Param:
            return nnx.Param(jax.random.normal(rngs.params(), shape, dtype) * shape[-2] ** -0.5)

        self.embedding = nnx.Param(jax.random.normal(rngs.params(), (vocab_size, embed), dtype))
        self.layers = nnx.List(
            TinyLayer(
                normal,
                embed=embed,
                heads=heads,
                kv_heads=1 if latent else kv_heads,
                window=windows[i % len(windows)],
                sinks=sinks,
                soft_cap=soft_cap,
                latent=latent,
                experts=experts,
            )
            for i in range(depth)
        )
        self.norm = nnx.Param(jnp.ones((embed,), dtype))
        self.output = normal(embed, vocab_size)

    def features(
        self,
        tokens: Int[Array, "B T"],
        *,
        positions: Int[Any, "B T"] | None = None,
        segment_ids: Int[Any, "B T"] | None = None,
        attention: Callable[..., Any] | None = None,
        kv: Sequence[Any] | None = None,
        taps: tuple[str, ...] = (),
    ) -> Any:
        """Computes the features before the head, and the cache entries after the call.

        Args:
            tokens: Token ids [B, T].
            positions: Position of each token. None: the index in the row.
            segment_ids: Documents of packed rows. None: one.
            attention: The attention operation. None: `causal_attention`.
            kv: One cache entry per layer, for `attention`. None: no cache.
            taps: ("experts",) to return the experts of each token too, {"experts": i32[L, B, T,
                2]}.
        """
        if positions is None:
            positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        attend = causal_attention if attention is None else attention
        where = {"positions": jnp.asarray(positions), "segment_ids": segment_ids}
        x, entries, used = self.embedding[...][tokens], [], []
        for layer, entry in zip(self.layers, kv or [None] * len(self.layers), strict=True):
            x, entry, expert_ids = layer(x, attend=attend, kv=entry, **where)
            entries.append(entry)
            used.append(expert_ids)
        x = _rms_norm(x, self.norm[...])
        return (x, entries, {"experts": jnp.stack(used)}) if taps else (x, entries)

    def head(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows V"]:
        """Returns the float32 logits of features."""
        return jnp.matmul(x, self.output[...], preferred_element_type=jnp.float32)

    def __call__(self, tokens: Int[Array, "B T"], **options: Any) -> Float[Array, "B T V"]:
        """Returns `head(features(tokens, **options)[0])`, float32."""
        return self.head(self.features(tokens, **options)[0])


class TinyLayer(nnx.Module):
    """Attention and SwiGLU, or a mixture of them, each behind an RMSNorm.

    Args:
        normal: Returns a random parameter of a shape.
        embed: As in `TinyDecoder`, like the others.
        heads: Query heads.
        kv_heads: Key heads.
        window: Number of visible keys.
        sinks: Whether heads have sink logits.
        soft_cap: Cap of attention logits.
        latent: Whether keys hold the values.
        experts: Number of experts.
    """

    def __init__(
        self,
        normal: Callable[..., nnx.Param],
        *,
        embed: int,
        heads: int,
        kv_heads: int,
        window: int | None,
        sinks: bool,
        soft_cap: float | None,
        latent: bool,
        experts: int,
    ):
        width = embed // heads
        self.shape = heads, kv_heads, width, width // 2 if latent else width
        self.window, self.soft_cap, self.latent = window, soft_cap, latent
        ones = jnp.ones((embed,), normal(1, 1).dtype)
        self.attention_norm, self.mlp_norm = nnx.Param(ones), nnx.Param(ones)
        self.q = normal(embed, heads * width)
        self.k = normal(embed, kv_heads * width)
        self.v = None if latent else normal(embed, kv_heads * width)
        self.o = normal(heads * self.shape[3], embed)
        self.sinks = nnx.Param(normal(1, heads)[...][0]) if sinks else None
        each = (experts,) if experts else ()
        self.router = normal(embed, experts) if experts else None
        self.gate, self.up = normal(*each, embed, 2 * embed), normal(*each, embed, 2 * embed)
        self.down = normal(*each, 2 * embed, embed)

    def __call__(
        self, x: Float[Array, "B T D"], *, attend: Callable[..., Any], kv: Any, **where: Any
    ) -> tuple[Float[Array, "B T D"], Any, Int[Array, "B T K"]]:
        """Returns the output, the cache entry and the experts of each token.

        Args:
            x: Input [B, T, D].
            attend: The attention operation.
            kv: The layer's cache entry, or None.
            **where: positions and segment_ids.
        """
        heads, kv_heads, width, value_width = self.shape
        y = _rms_norm(x, self.attention_norm[...])
        q = (y @ self.q[...]).reshape(*y.shape[:2], heads, width)
        k = (y @ self.k[...]).reshape(*y.shape[:2], kv_heads, width)
        q, k = _rotate(q, where["positions"]), _rotate(k, where["positions"])
        v = k[..., :value_width] if self.v is None else (y @ self.v[...]).reshape(k.shape)
        sinks = None if self.sinks is None else self.sinks[...]
        options = {"causal": True, "window": self.window, "soft_cap": self.soft_cap}
        out, kv = attend(q, k, v, scale=width**-0.5, sinks=sinks, kv=kv, **options, **where)
        x = x + out.reshape(*y.shape[:2], -1) @ self.o[...]
        y, expert_ids = self._mixed(_rms_norm(x, self.mlp_norm[...]))
        return x + y, kv, expert_ids

    def _mixed(self, x: Array) -> tuple[Array, Array]:
        """Returns the output of SwiGLU, or the weighted sum of two experts."""
        gate, up, down = self.gate[...], self.up[...], self.down[...]
        if self.router is None:
            return (nnx.silu(x @ gate) * (x @ up)) @ down, jnp.zeros((*x.shape[:2], 0), jnp.int32)
        shares = jax.nn.softmax((x @ self.router[...]).astype(jnp.float32))
        weights, expert_ids = jax.lax.top_k(shares, _EXPERTS_OF_A_TOKEN)
        of_all = jnp.einsum("btk,btke->bte", weights, jax.nn.one_hot(expert_ids, gate.shape[0]))
        hidden = nnx.silu(jnp.einsum("btd,edf->btef", x, gate)) * jnp.einsum("btd,edf->btef", x, up)
        out = jnp.einsum("btef,efd->bted", hidden, down)
        return jnp.einsum("bted,bte->btd", out, of_all.astype(x.dtype)), expert_ids


def causal_attention(
    q: Float[Array, "B T n h"],
    k: Float[Array, "B T k h"],
    v: Float[Array, "B T k g"],
    *,
    causal: bool,
    positions: Int[Array, "B T"],
    segment_ids: Int[Any, "B T"] | None,
    window: int | None,
    soft_cap: float | None,
    scale: float,
    sinks: Float[Array, " n"] | None,
    kv: None = None,
) -> tuple[Float[Array, "B T n g"], None]:
    """Computes attention within rows, without a cache.

    Args:
        q: Queries.
        k: Keys.
        v: Values.
        causal: True.
        positions: Position of each token.
        segment_ids: Documents, which do not see each other. None: one.
        window: Number of visible keys up to a query's own. None: all.
        soft_cap: Cap of the logits.
        scale: Factor of the logits.
        sinks: One logit per head, in the denominator only.
        kv: None.
    """
    assert causal
    k, v = (jnp.repeat(x, q.shape[2] // k.shape[2], axis=2) for x in (k, v))
    logits = scale * jnp.einsum("btnh,bsnh->bnts", q, k).astype(jnp.float32)
    if soft_cap is not None:
        logits = soft_cap * jnp.tanh(logits / soft_cap)
    ahead = positions[:, :, None] - positions[:, None, :]
    seen = (ahead >= 0) & (ahead < (jnp.inf if window is None else window))
    if segment_ids is not None:
        seen &= segment_ids[:, :, None] == segment_ids[:, None, :]
    logits = jnp.where(seen[:, None], logits, -jnp.inf)
    if sinks is not None:
        column = jnp.broadcast_to(sinks[None, :, None, None], (*logits.shape[:3], 1))
        logits = jnp.concatenate([logits, column.astype(jnp.float32)], axis=-1)
    weights = jax.nn.softmax(logits)[..., : k.shape[1]].astype(v.dtype)
    return jnp.einsum("bnts,bsng->btng", weights, v), None


def _rms_norm(x: Array, scale: Array) -> Array:
    x32 = x.astype(jnp.float32)
    mean = jnp.mean(x32 * x32, axis=-1, keepdims=True)
    return (x32 * jax.lax.rsqrt(mean + _EPS)).astype(x.dtype) * scale[None, None]


def _rotate(x: Array, positions: Array) -> Array:
    """Rotates element i of the first half of a head with element i of the second."""
    half = x.shape[-1] // 2
    frequencies = _THETA ** (-jnp.arange(half) / half)
    angles = positions[:, :, None, None] * frequencies[None, None, None]
    cos, sin = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)
