# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The default attention of a decoder, and a contiguous cache for it.

Uses `jax.nn.dot_product_attention` if it supports the options, and otherwise the formula (soft cap,
sinks, values of another width than keys). Both hold the whole [queries, keys] matrix of each head.
Faster implementations are compared with this one.

A cache entry of `dense_kv` is a pair (k, v) of [rows, length, kv_heads, head_dim]; slot i holds
position i of the row's one sequence. For latent attention it is (k, None): a value is the first
numbers of its key. A call writes its keys at `positions` and reads every slot up
to the query's position. Rows of unequal length can share a batch: a slot beyond a row's length is
never read before it is written.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.core import Tracer
from jaxtyping import Array, Bool, DTypeLike, Float, Int

from dovetail_models.config.decoder import Config

Entry = tuple[Array, Array | None]


def attention(
    q: Float[Array, "b t n h"],
    k: Float[Array, "b s k h"],
    v: Float[Array, "b s k g"],
    *,
    causal: bool,
    positions: Int[Array, "b t"] | None,
    segment_ids: Int[Array, "b t"] | None,
    window: int | None,
    soft_cap: float | None,
    scale: float,
    sinks: Float[Array, " n"] | None,
    kv: Entry | None = None,
) -> Any:
    """Computes `softmax(scale q kᵀ + mask) v`; n / k query heads share one key-value head.

    Args:
        q: Queries [b, t, n, h].
        k: Keys [b, s, k, h].
        v: Values [b, s, k, g].
        causal: Requires position_q >= position_k.
        positions: Positions [b, t]. None: indices in the row.
        segment_ids: Requires equal ids [b, t]. With `kv` they only mark padding (0) in the row's
            one sequence.
        window: Requires |position_q - position_k| < window.
        soft_cap: c bounds the logits as `c tanh(logits / c)`.
        scale: Factor on the logits.
        sinks: One logit per head [n], added to the denominator only (StreamingLLM, 2309.17453, sec.
            3.3).
        kv: Cache entry. Keys and values are written to it at `positions`, except those of segment
            0. An entry (keys, None) stores keys alone, and v must be `k[..., :g]`: the values are
            read from the keys.

    Returns:
        Output [b, t, n, g] in q's dtype, softmax in float32; with `kv` the pair (output, new
        entry).

    Raises:
        ValueError: `kv` is given without `causal`, or a concrete position is outside the cache.

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_models import attention
        >>> q = k = v = jnp.ones((1, 4, 2, 8))
        >>> options = dict(positions=None, segment_ids=None, window=None, soft_cap=None, sinks=None)
        >>> attention(q, k, v, causal=True, scale=8**-0.5, **options).shape
        (1, 4, 2, 8)
    """
    if kv is None:
        where = _index(q) if positions is None else positions
        mask = _visible(where, where, causal=causal, window=window)
        if segment_ids is not None:
            mask &= segment_ids[:, :, None] == segment_ids[:, None, :]
        out = _attend(q, k, v, mask, soft_cap=soft_cap, scale=scale, sinks=sinks)
        return checkpoint_name(out, "attn_out")
    if not causal:
        raise ValueError(
            "A cache is read in order, so it needs causal=True, got causal=False with kv. Leave kv "
            "out, or pass causal=True."
        )
    where = _index(q) if positions is None else positions
    kv = _write(kv, k, v, where, segment_ids)
    k, v = kv[0], kv[0][..., : v.shape[-1]] if kv[1] is None else kv[1]
    mask = _visible(where, _index(k), causal=True, window=window)
    return _attend(q, k, v, mask, soft_cap=soft_cap, scale=scale, sinks=sinks), kv


@jax.transfer_guard("allow")
def dense_kv(
    config: Config, *, rows: int, length: int, dtype: DTypeLike = jnp.float32
) -> list[Entry]:
    """Returns an empty cache: one entry per layer.

    Concrete positions from `length` on are refused. Under jit they are not stored, and the caller
    must not query them.

    Args:
        config: The decoder's configuration.
        rows: Number of sequences.
        length: Tokens per sequence.
        dtype: dtype of the model's weights.

    Example:

        >>> from dovetail_models import dense_kv, llama
        >>> config = llama(vocab_size=64, embed=16, depth=2, heads=2, mlp=32)
        >>> [keys.shape for keys, values in dense_kv(config, rows=1, length=4)]
        [(1, 4, 2, 8), (1, 4, 2, 8)]
    """

    def empty(shape: tuple[int, int] | None) -> Array | None:
        return None if shape is None else jnp.zeros((rows, length, *shape), dtype)

    shapes = [la.attention.cached for la in config.layers]
    return [(jnp.zeros((rows, length, *key), dtype), empty(value)) for key, value in shapes]


def _index(x: Array) -> Int[Array, "1 t"]:
    return jnp.arange(x.shape[1])[None]


def _visible(
    query: Int[Array, "#b t"], key: Int[Array, "#b s"], *, causal: bool, window: int | None
) -> Bool[Array, "_ t s"]:
    ahead = query[:, :, None] - key[:, None, :]
    mask = ahead >= 0 if causal else jnp.ones_like(ahead, bool)
    return mask if window is None else mask & (jnp.abs(ahead) < window)


def _write(kv: Entry, k: Array, v: Array, where: Array, segment_ids: Array | None) -> Entry:
    length = kv[0].shape[1]
    # NumPy: a JAX reduction of a constant inside jit would be traced.
    last = -1 if isinstance(where, Tracer) or not where.size else int(np.asarray(where).max())
    if last >= length:
        raise ValueError(
            f"Every position must lie in the cache, got position={last} with length={length}. "
            "Make it larger: dense_kv(config, rows=..., length=...)."
        )
    # The scatter drops slots beyond the cache; negative ones would wrap.
    padding = where < 0 if segment_ids is None else (where < 0) | (segment_ids == 0)
    slot = jnp.where(padding, length, where)
    row = jnp.arange(k.shape[0])[:, None]
    keys = kv[0].at[row, slot].set(k.astype(kv[0].dtype), mode="drop")
    if kv[1] is None:
        return keys, None
    return keys, kv[1].at[row, slot].set(v.astype(kv[1].dtype), mode="drop")


def _attend(q, k, v, mask, *, soft_cap, scale, sinks) -> Array:
    if soft_cap is None and sinks is None and q.shape[-1] == v.shape[-1]:
        k, v = k.astype(q.dtype), v.astype(q.dtype)
        # It mixes bfloat16 with its float32 scores; strict promotion forbids that.
        with jax.numpy_dtype_promotion("standard"):
            return jax.nn.dot_product_attention(q, k, v, mask=mask[:, None], scale=scale)
    return _formula(q, k, v, mask, soft_cap=soft_cap, scale=scale, sinks=sinks)


def _formula(q, k, v, mask, *, soft_cap, scale, sinks) -> Array:
    b, t, n, h = q.shape
    heads = k.shape[2]
    grouped = q.reshape(b, t, heads, n // heads, h)
    logits = jnp.einsum("btkgh,bskh->bkgts", grouped, k, preferred_element_type=jnp.float32)
    logits = logits * scale
    if soft_cap is not None:
        logits = soft_cap * jnp.tanh(logits / soft_cap)
    logits = jnp.where(mask[:, None, None], logits, jnp.finfo(jnp.float32).min)
    weights = _softmax(logits, sinks).astype(v.dtype)
    out = jnp.einsum("bkgts,bskh->btkgh", weights, v, preferred_element_type=jnp.float32)
    return out.reshape(b, t, n, v.shape[-1]).astype(q.dtype)


def _softmax(logits: Float[Array, "b k g t s"], sinks: Float[Array, " n"] | None) -> Array:
    if sinks is None:
        return jax.nn.softmax(logits, axis=-1)
    column = sinks.astype(jnp.float32).reshape(*logits.shape[1:3], 1, 1)
    column = jnp.broadcast_to(column, (*logits.shape[:-1], 1))
    return jax.nn.softmax(jnp.concatenate([logits, column], axis=-1), axis=-1)[..., :-1]
