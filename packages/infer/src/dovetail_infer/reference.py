# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Readable reference operations. The module itself is an `Operations`: `operations=reference`.

They gather all keys of a request and sort whole rows of logits. `dovetail_kernels` has the same
operations without either.

Shape letters: N token rows, R requests, P pages, C columns of a page table, n query heads, k key
heads, h width of a key, g width of a value, V vocabulary.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int, Key, Num

__all__ = ["paged_attention", "paged_write", "sample", "warp_logits"]


def paged_attention(
    q: Float[Array, "N n h"],
    pages: Float[Array, "P kv page k h"],
    *,
    page_table: Int[Array, "R C"],
    kv_lengths: Int[Array, " R"],
    q_starts: Int[Array | np.ndarray, " R1"],
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: Float[Array, " n"] | None = None,
    scale: float | None = None,
    value_width: int | None = None,
    invariant: bool = False,
) -> Float[Array, "N n g"]:
    """Computes softmax(scale q·k) v, one row after the other, in float32.

    Args:
        q: Queries [N, n, h]. Rows from q_starts[-1] on are padding, with output 0.
        pages: Cache [P, 2, page, k, h], or [P, 1, page, k, h] with `value_width`.
        page_table: Page ids [R, C].
        kv_lengths: Number of keys of each request [R].
        q_starts: First row of each request, then the end of the last [R + 1].
        window: Number of visible keys up to a row's own. None: all.
        soft_cap: Replaces each logit by `c tanh(logit / c)`.
        sinks: One logit per head [n], in the denominator only.
        scale: Factor of the logits. Default 1 / √h.
        value_width: Width of the values in pages of keys alone.
        invariant: Changes nothing: each row is computed alone.

    Returns:
        Output [N, n, g] in q's dtype.
    """
    size, key_heads, width = pages.shape[2:]
    requests, columns = page_table.shape
    q_starts = jnp.asarray(q_starts)
    place = jnp.arange(columns * size)

    def row(i: Array, q: Array) -> Array:
        request = jnp.searchsorted(q_starts[1:], i, side="right")
        request = jnp.minimum(request, requests - 1)
        position = kv_lengths[request] - q_starts[request + 1] + i
        kv = pages[page_table[request]].astype(jnp.float32).swapaxes(0, 1)
        kv = kv.reshape(-1, columns * size, key_heads, width)
        seen = place <= position
        if window is not None:
            seen &= place > position - window
        kv = jnp.where(seen[:, None, None], kv, 0)  # an unused page may hold NaN
        k = jnp.repeat(kv[0], q.shape[0] // key_heads, axis=1)
        v = jnp.repeat(kv[-1, :, :, :value_width], q.shape[0] // key_heads, axis=1)
        logits = jnp.einsum("nh,jnh->nj", q.astype(jnp.float32), k)
        logits = logits * (width**-0.5 if scale is None else scale)
        if soft_cap is not None:
            logits = soft_cap * jnp.tanh(logits / soft_cap)
        logits = jnp.where(seen[None], logits, -jnp.inf)
        top = jnp.max(logits, axis=1, keepdims=True)
        if sinks is not None:
            top = jnp.maximum(top, sinks.astype(jnp.float32)[:, None])
        weights = jnp.exp(logits - top)
        total = weights.sum(axis=1, keepdims=True)
        if sinks is not None:
            total = total + jnp.exp(sinks.astype(jnp.float32)[:, None] - top)
        return jnp.einsum("nj,jng->ng", weights / total, v).astype(q.dtype)

    rows = jnp.arange(q.shape[0])
    out = jax.lax.map(lambda given: row(*given), (rows, q))
    return jnp.where((rows < q_starts[-1])[:, None, None], out, 0)


def paged_write(
    pages: Float[Array, "P kv page k h"],
    k: Float[Array, "N k h"],
    v: Float[Array, "N k h"] | None,
    *,
    slots: Int[Array, " N"],
) -> Float[Array, "P kv page k h"]:
    """Returns the pages with k and v written at `slots`.

    Args:
        pages: Cache [P, 2, page, k, h], or [P, 1, page, k, h] if v is None.
        k: Keys [N, k, h].
        v: Values [N, k, h], or None for pages of keys alone.
        slots: Page id * page size + place in the page [N]. -1 writes nothing.
    """
    count, size = pages.shape[0], pages.shape[2]
    page = jnp.where(slots < 0, count, slots // size)
    for entry, rows in enumerate((k,) if v is None else (k, v)):
        pages = pages.at[page, entry, slots % size].set(rows.astype(pages.dtype), mode="drop")
    return pages


def warp_logits(
    logits: Float[Array, "R V"],
    *,
    temperature: Num[Array, " R"],
    top_k: Int[Array, " R"],
    top_p: Float[Array, " R"],
    min_p: Float[Array, " R"],
) -> Float[Array, "R V"]:
    """Computes `(logits - maximum) / temperature`, with -inf for tokens that are cut off.

    Args:
        logits: Logits [R, V].
        temperature: At least 0 [R]. 0 keeps the first of the largest.
        top_k: Number of largest logits to keep [R], with all equal to the last. 0: all.
        top_p: Probability that the likeliest of the rest must reach [R]. 1: all.
        min_p: Least probability relative to the likeliest token [R]. 0: all.

    Returns:
        f32[R, V]. NaN for a row with NaN, with +inf, or with nothing above -inf.
    """
    return jax.vmap(_warped_row)(logits, temperature, top_k, top_p, min_p)


def _warped_row(z: Array, temperature: Array, top_k: Array, top_p: Array, min_p: Array) -> Array:
    z = z.astype(jnp.float32)
    top = jnp.max(jnp.where(jnp.isnan(z), jnp.inf, z))
    scaled = (z - top) / jnp.where(temperature == 0, 1, temperature)
    ordered = jnp.sort(z, descending=True)
    least = jnp.where(top_k == 0, -jnp.inf, ordered[jnp.clip(top_k, 1, z.size) - 1])
    p = jnp.exp((ordered - top) / jnp.where(temperature == 0, 1, temperature))
    p = jnp.where(ordered >= least, p, 0)
    needed = jnp.cumsum(p) - p < top_p * jnp.sum(p)
    nucleus = jnp.min(jnp.where(needed, ordered, jnp.inf))
    least = jnp.where(top_p == 1, least, nucleus)
    keep = (z >= least) & (z > -jnp.inf) & (jnp.exp(scaled) >= min_p)
    keep = jnp.where(temperature == 0, jnp.arange(z.size) == jnp.argmax(z), keep)
    return jnp.where(jnp.isfinite(top), jnp.where(keep, scaled, -jnp.inf), jnp.nan)


def sample(logits: Float[Array, "R V"], *, keys: Key[Array, " R"]) -> Int[Array, " R"]:
    """Draws a token of each row from softmax(logits), by its own key; -1 for a row with NaN."""
    drawn = jax.vmap(jax.random.categorical)(keys, logits)
    wrong = jnp.isnan(logits).any(axis=1) | jnp.isneginf(logits).all(axis=1)
    return jnp.where(wrong, -1, drawn).astype(jnp.int32)
