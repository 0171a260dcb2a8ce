# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Paged attention by its formula: every row with a contiguous copy of all keys of its request."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dovetail_kernels.dispatch import Implementation, Work
from dovetail_kernels.paged.call import PagedCall
from dovetail_kernels.paged.requests import requests
from dovetail_kernels.precision import product


@functools.partial(jax.jit, static_argnames="call")
def run(
    q: Float[Array, "M N H"],
    pages: Float[Array, "P page 2 K H"],
    page_table: Int[Array, "R C"],
    kv_lengths: Int[Array, " R"],
    q_starts: Int[Array, " R1"],
    sinks: Float[Array, " N"] | None,
    *,
    call: PagedCall,
) -> Float[Array, "M N H"]:
    """Computes softmax(scale q·k) v of each row, over its visible keys.

    Args:
        q: Queries [M, N, H].
        pages: Cache [P, page, 2, K, H].
        page_table: Page ids i32[R, C].
        kv_lengths: Number of keys of each request, i32[R].
        q_starts: First row of each request, then the end of the last, i32[R + 1].
        sinks: One logit per head [N], or None.
        call: Sizes and options.

    Returns:
        Output [M, N, H] in q's dtype, computed in float32, or float64 for float64.
    """
    batch = requests(call, page_table, kv_lengths, q_starts)
    dtype = jnp.dtype(call.inner)
    count, heads, width = q.shape  # heads are those of this shard
    if not call.requests:
        return jnp.zeros_like(q)
    j = jnp.arange(call.keys, dtype=jnp.int32)

    def row(q: jax.Array, i: jax.Array, request: jax.Array) -> jax.Array:
        position = batch.first[request] + i - batch.starts[request]
        seen = j <= position
        if call.window is not None:
            seen &= j > position - min(call.window, call.keys + 1)
        kv = pages[batch.page_ids[request]].reshape(call.keys, 2, -1, width)
        kv = jnp.where(seen[:, None, None, None], kv, 0).astype(dtype)
        k, v = jnp.repeat(kv, heads // kv.shape[2], axis=2).swapaxes(0, 1)
        logits = call.scale * product("nh,jnh->nj", q.astype(dtype), k, dtype=call.dtype)
        if call.soft_cap is not None:
            logits = call.soft_cap * jnp.tanh(logits / call.soft_cap)
        logits = jnp.where(seen[None], logits, -jnp.inf)
        if sinks is not None:
            logits = jnp.concatenate([logits, sinks.astype(dtype)[:, None]], axis=1)
        weights = jax.nn.softmax(logits, axis=1)[:, : call.keys]
        return product("nj,jnh->nh", weights, v, dtype=call.dtype)

    i = jnp.arange(count, dtype=jnp.int32)
    out = jax.vmap(row)(q, i, batch.row_request)
    out = jnp.where(batch.row_owned[:, None, None], out, 0)
    return jnp.where(batch.row_bad[:, None, None], jnp.nan, out).astype(q.dtype)


def _work(call: PagedCall) -> Work:
    size = jnp.dtype(call.dtype).itemsize
    copied = call.queries * call.keys * 2 * call.kv_heads * call.width
    rows = 2 * call.queries * call.heads * call.width
    scores = 4 * call.queries * call.heads * call.keys
    return Work(
        flops=2 * rows * call.keys,
        bytes=copied * (size + 4 * (1 + call.heads // call.kv_heads)) + rows * size + 4 * scores,
    )


REFERENCE = Implementation[PagedCall](
    name="reference", refuse=lambda call: None, work=_work, run=run
)
