# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Paged attention by its formula: every row with a contiguous copy of all keys of its request."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from dovetail_kernels.dispatch import Implementation, Work
from dovetail_kernels.paged.call import PagedCall, PagedInputs
from dovetail_kernels.paged.pages import QuantizedPages, codes_of
from dovetail_kernels.paged.requests import requests
from dovetail_kernels.precision import product


def run(call: PagedCall, inputs: PagedInputs) -> Any:
    """Computes softmax(scale q·k) v of each row, over its visible keys.

    Returns:
        Output [M, N, G] in q's dtype, computed in float32, or float64 for float64. With `call.lse`
        also lse [M, N].
    """
    q, pages, page_table, kv_lengths, q_starts, sinks = inputs
    batch = requests(call, page_table, kv_lengths, q_starts)
    dtype = jnp.dtype(call.inner)
    count, heads, _ = q.shape  # heads are those of this shard
    entry = codes_of(pages).shape[3:]
    if not call.requests:
        out = jnp.zeros((count, heads, call.out_width), q.dtype)
        return (out, jnp.full((count, heads), -jnp.inf, dtype)) if call.lse else out
    j = jnp.arange(call.keys, dtype=jnp.int32)

    def row(q: jax.Array, i: jax.Array, request: jax.Array) -> tuple[jax.Array, jax.Array]:
        position = batch.first[request] + i - batch.starts[request]
        seen = j <= position
        if call.window is not None:
            seen &= j > position - min(call.window, call.keys + 1)
        kv = _entries(pages, batch.page_ids[request], dtype).swapaxes(0, 1)
        kv = jnp.where(seen[:, None, None], kv.reshape(-1, call.keys, *entry), 0)
        kv = jnp.repeat(kv, heads // entry[0], axis=2)
        k, v = kv[0], kv[-1, :, :, : call.out_width]
        logits = call.scale * product("nh,jnh->nj", q.astype(dtype), k, dtype=call.operands)
        if call.soft_cap is not None:
            logits = call.soft_cap * jnp.tanh(logits / call.soft_cap)
        logits = jnp.where(seen[None], logits, -jnp.inf)
        if sinks is not None:
            logits = jnp.concatenate([logits, sinks.astype(dtype)[:, None]], axis=1)
        weights = jax.nn.softmax(logits, axis=1)[:, : call.keys]
        out = product("nj,jnh->nh", weights, v, dtype=call.operands)
        return out, jax.nn.logsumexp(logits, axis=1)

    i = jnp.arange(count, dtype=jnp.int32)
    out, lse = jax.vmap(row)(q, i, batch.row_request)
    out = jnp.where(batch.row_owned[:, None, None], out, 0)
    out = jnp.where(batch.row_bad[:, None, None], jnp.nan, out).astype(q.dtype)
    lse = jnp.where(batch.row_owned[:, None], lse, -jnp.inf)
    return (out, jnp.where(batch.row_bad[:, None], jnp.nan, lse)) if call.lse else out


def _entries(pages: Any, ids: Array, dtype: Any) -> Array:
    """Returns the keys and values of these pages in `dtype`."""
    if not isinstance(pages, QuantizedPages):
        return pages[ids].astype(dtype)
    return pages.codes[ids].astype(dtype) * pages.scales[ids][..., None].astype(dtype)


def _work(call: PagedCall) -> Work:
    size = jnp.dtype(call.dtype).itemsize
    read = jnp.dtype(call.pages_dtype).itemsize
    entries = 2 if call.value_width is None else 1
    copied = call.queries * call.keys * entries * call.kv_heads * call.width
    rows = call.queries * call.heads * (call.width + call.out_width)
    scores = 4 * call.queries * call.heads * call.keys
    return Work(
        flops=2 * rows * call.keys,
        bytes=copied * (read + 4 * (1 + call.heads // call.kv_heads)) + rows * size + 4 * scores,
        # The copies of each row, before and after they are repeated for its heads.
        peak_bytes=copied * (read + jnp.dtype(call.inner).itemsize * call.heads // call.kv_heads),
    )


REFERENCE = Implementation[PagedCall](
    name="reference", refuse=lambda call: None, work=_work, run=run
)
