# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Attention as its formula, with the whole [T, S] matrix of each head, differentiated by JAX.

It refuses no call, and it alone has second derivatives and forward mode. Non-finite values need
care, because 0 · NaN is NaN in a product over keys (forward) and over queries (backward). Products
therefore use zeros for non-finite queries, keys and values, and visible logits of such values are
set to NaN. Rows with such logits are NaN; all others are unaffected.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from dovetail_kernels.attention.call import AttentionCall, Inputs
from dovetail_kernels.attention.pairwise import by_group
from dovetail_kernels.attention.stats import SoftmaxStats
from dovetail_kernels.dispatch import Implementation, Work
from dovetail_kernels.precision import product


def run(call: AttentionCall, inputs: Inputs) -> Any:
    """Returns `out`, or `(out, SoftmaxStats)` if `call.stats`."""
    mask = visible(call, inputs)
    q, k, v, bad = _finite(call, inputs)
    logits = call.scale * product("btkgh,bskh->bkgts", q, k, dtype=call.dtype)
    logits = jnp.where(mask & bad, jnp.nan, logits)
    if inputs.bias is not None:
        logits = logits + by_group(inputs.bias, call.kv_heads).astype(call.inner_dtype)
    if call.soft_cap is not None:
        logits = call.soft_cap * jnp.tanh(logits / call.soft_cap)
    logits = jnp.where(mask, logits, -jnp.inf)
    largest = logits.max(-1, keepdims=True)
    weights, lse = _softmax(logits, mask, largest, _sinks(call, inputs))
    out = product("bkgts,bskh->btkgh", weights.astype(call.dtype), v, dtype=call.dtype)
    out = out.reshape(call.batch, call.queries, call.heads, call.value_dim).astype(call.dtype)
    if not call.stats:
        return out
    by_row = lse.reshape(call.batch, call.heads, call.queries).swapaxes(1, 2)
    by_head = jax.lax.stop_gradient(largest).reshape(call.batch, call.heads, -1).max(-1)
    return out, SoftmaxStats(lse=by_row, max=by_head)


def visible(call: AttentionCall, inputs: Inputs) -> Bool[Array, "_ _ _ t s"]:
    """Returns the mask of visible keys [batch, k, g, T, S]. Axes may be 1 if all are equal."""
    if inputs.positions is None:
        query, key = jnp.arange(call.queries)[None, :], jnp.arange(call.keys)[None, :]
    else:
        query, key = inputs.positions
    ahead = query[:, :, None] - key[:, None, :]
    mask = ahead >= 0 if call.causal else jnp.ones_like(ahead, bool)
    if call.window is not None:
        mask &= (ahead <= call.window[0]) & (ahead >= -call.window[1])
    if inputs.segment_ids is not None:
        query, key = inputs.segment_ids
        mask = mask & (query[:, :, None] == key[:, None, :])
    if inputs.kv_lengths is not None:
        index = jnp.arange(call.keys, dtype=inputs.kv_lengths.dtype)
        mask = mask & (index[None, :] < inputs.kv_lengths[:, None])[:, None, :]
    mask = mask[:, None, None]
    return mask if inputs.mask is None else mask & by_group(inputs.mask, call.kv_heads)


def _finite(call: AttentionCall, inputs: Inputs) -> tuple[Array, Array, Array, Array]:
    """Returns q by groups, k and v with zeros for non-finite values, and a mask of their logits."""
    groups = call.heads // call.kv_heads
    q = inputs.q.reshape(call.batch, call.queries, call.kv_heads, groups, call.head_dim)
    q_bad = ~jnp.isfinite(q).all(-1)
    kv_bad = ~(jnp.isfinite(inputs.k).all(-1) & jnp.isfinite(inputs.v).all(-1))
    q, k, v = (
        jnp.where(bad[..., None], 0, x)
        for bad, x in ((q_bad, q), (kv_bad, inputs.k), (kv_bad, inputs.v))
    )
    bad = q_bad.transpose(0, 2, 3, 1)[..., None] | kv_bad.transpose(0, 2, 1)[:, :, None, None, :]
    return q, k, v, bad


def _sinks(call: AttentionCall, inputs: Inputs) -> Float[Array, "1 k _ 1 1"]:
    if inputs.sinks is None:
        return jnp.full((1, call.kv_heads, 1, 1, 1), -jnp.inf, call.inner_dtype)
    return inputs.sinks.astype(call.inner_dtype).reshape(1, call.kv_heads, -1, 1, 1)


def _softmax(logits: Array, mask: Array, largest: Array, sinks: Array) -> tuple[Array, Array]:
    """Returns the weights and the log of their denominator, keys axis kept; 0 and -inf for none."""
    base = jax.lax.stop_gradient(jnp.maximum(largest, sinks))
    base = jnp.where(base == -jnp.inf, 0, base)
    # Masked again, here and below: in a NaN row the weights of masked logits would be NaN too.
    powers = jnp.where(mask, jnp.exp(logits - base), 0)
    total = powers.sum(-1, keepdims=True) + jnp.exp(sinks - base)
    none = total == 0
    total = jnp.where(none, 1, total)
    return jnp.where(mask, powers / total, 0), jnp.where(none, -jnp.inf, base + jnp.log(total))


def _work(call: AttentionCall) -> Work:
    """Counts all pairs, visible or not. Logits and weights: each written once, read three times."""
    pairs = call.batch * call.heads * call.queries * call.keys
    own = (
        call.batch * call.queries * call.heads * (call.head_dim + call.value_dim)
        + call.batch * call.keys * call.kv_heads * (call.head_dim + call.value_dim)
    ) * call.dtype.itemsize
    inner = call.inner_dtype.itemsize
    cleaned = call.batch * call.keys * call.kv_heads * (call.head_dim + call.value_dim)
    return Work(
        flops=2 * pairs * (call.head_dim + call.value_dim),
        bytes=own + call.pairwise_bytes + 8 * pairs * inner,
        # Logits and weights, or logits beside cleaned keys and values if these are larger.
        peak_bytes=(pairs + max(pairs, cleaned)) * inner,
    )


REFERENCE = Implementation(name="reference", refuse=lambda call: None, work=_work, run=run)
