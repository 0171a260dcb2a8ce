# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Blocked attention forward: FlashAttention-2 (2307.08691), algorithm 1, over visited blocks.

Each block of queries keeps the running maximum m, total and weighted sum acc of its rows, and
divides once at the end. Fully visible blocks of keys come first and are not masked.

A non-finite key or value must reach only the rows that see it, but 0 · NaN in the product
with the values would reach all rows of the block. In masked blocks, the value is therefore zero in
this product. Its key is NaN in the product for the logits, before they are masked.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from dovetail_kernels.arrays import Cut
from dovetail_kernels.attention import pairwise, tiles
from dovetail_kernels.attention.bounds import Bounds, Visits, bounds, visible, visible_pairs
from dovetail_kernels.attention.call import AttentionCall, Inputs
from dovetail_kernels.costs_in_names import trips
from dovetail_kernels.mesh import varying
from dovetail_kernels.precision import product


class _State(NamedTuple):
    m: Float[Array, "b k g i"]
    total: Float[Array, "b k g i"]
    acc: Float[Array, "b k gi h"]


def forward(
    call: AttentionCall, inputs: Inputs, queries: Cut, keys: Cut, row: Array | None = None
) -> tuple[Float[Array, "b t n h"], Float[Array, "b t n"], Float[Array, "b n"]]:
    """Computes blocked attention.

    Args:
        call: The call.
        inputs: Its arrays.
        queries: Blocks of queries.
        keys: Blocks of keys.
        row: For a call of one row, its number in k and v, which have all rows. None for the same
            rows in all arrays.

    Returns:
        (out [b, t, n, h], lse [b, t, n], largest logit per head [b, n]).
    """
    at = bounds(call, inputs, queries, keys)
    q, k, v = (
        tiles.filled(x, cut) for x, cut in zip(inputs[:3], (queries, keys, keys), strict=True)
    )

    bias = None if inputs.bias is None else pairwise.filled(inputs.bias, queries, keys)

    def block(out: Array, visit: Visits) -> tuple[Array, tuple[Array, Array]]:
        qi = tiles.query_block(q, visit.block, queries, call.kv_heads)

        def step(n: Array | int, state: _State, masked: bool) -> _State:
            ids = visit.ids[:, n]
            kj, vj = (tiles.key_block(x, ids, keys, call.kv_heads, row) for x in (k, v))
            mask = visible(call, at, visit, n) if masked else None
            addend = bias_rows(call, bias, pairwise.Place(visit.block, ids, queries, keys))
            return _step(call, state, qi, kj, vj, addend, mask)

        state = varying(_begin(call, queries.size), q)
        state = over(call, visit, at, step, state)
        block_out, lse, largest = _end(call, inputs.sinks, state)
        return tiles.put_query_block(out, block_out, visit.block, queries), (lse, largest)

    out = varying(jnp.zeros((*q.shape[:3], call.value_dim), call.dtype), q)
    out, rows = jax.lax.scan(block, out, at.visits)
    lse, largest = (x.transpose(1, 0, 4, 2, 3).reshape(*q.shape[:3]) for x in rows)
    return out[:, : call.queries], lse[:, : call.queries], largest[:, : call.queries].max(1)


def over(
    call: AttentionCall, visit: Visits, at: Bounds, step: Callable[..., Any], state: Any
) -> Any:
    """Runs `state = step(n, state, masked=...)` over the visits of one block of queries.

    If no key may be hidden, every block is visited without a mask.

    Args:
        call: The call.
        visit: Visits of the block.
        at: Conditions of the call.
        step: Function of the visit, the state and `masked`.
        state: First state.

    Returns:
        The last state.
    """
    whole, some = visit.whole.min(), visit.some.max()
    queries, keys = at.cuts
    # One loop is compiled in half the time of two. Only the sum of their rounds is known before.
    kinds = 2 if at.conditional and keys.blocks > 1 else 1
    visited = kinds * queries.blocks * queries.size * keys.size
    if at.conditional and keys.blocks == 1:
        whole = 0
    else:
        with trips(visible_pairs(call), visited):
            state = jax.lax.fori_loop(0, whole, functools.partial(step, masked=False), state)
    if not at.conditional:
        return state
    with trips(visible_pairs(call), visited):
        return jax.lax.fori_loop(whole, some, functools.partial(step, masked=True), state)


def logits(
    call: AttentionCall,
    rows: Float[Array, "b k x h"],
    columns: Float[Array, "b k y h"],
    bias: Float[Array, "_ _ _ _"] | None,
) -> tuple[Float[Array, "b k x y"], Float[Array, "b k x y"] | None]:
    """Scales the products of rows and columns, adds the bias, and caps the sum.

    Args:
        call: The call.
        rows: [b, k, x, h].
        columns: [b, k, y, h].
        bias: Addend, broadcast to [b, k, x, y], or None.

    Returns:
        The logits [b, k, x, y], and the tanh of the soft cap, or None without one.
    """
    products = product("bkxh,bkyh->bkxy", rows, columns, dtype=call.dtype)
    products = products * call.scale
    if bias is not None:
        products = products + bias
    if call.soft_cap is None:
        return products, None
    tanh = jnp.tanh(products / call.soft_cap)
    return call.soft_cap * tanh, tanh


def _begin(call: AttentionCall, size: int) -> _State:
    shape = (call.batch, call.kv_heads, call.heads // call.kv_heads, size)
    m = jnp.full(shape, -jnp.inf, call.inner_dtype)
    acc = jnp.zeros((*shape[:2], shape[2] * size, call.value_dim), call.inner_dtype)
    return _State(m=m, total=jnp.zeros_like(m), acc=acc)


def _step(
    call: AttentionCall,
    state: _State,
    q: Float[Array, "b k gi h"],
    k: Float[Array, "b k j h"],
    v: Float[Array, "b k j w"],
    bias: Float[Array, "_ _ _ _"] | None,
    mask: Bool[Array, "_ _ _ _ _"] | None,
) -> _State:
    m, total, acc = state
    if mask is not None:
        fine = jnp.isfinite(k).all(-1, keepdims=True) & jnp.isfinite(v).all(-1, keepdims=True)
        k, v = jnp.where(fine, k, jnp.nan), jnp.where(fine, v, 0)
    s = logits(call, q, k, bias)[0].reshape(*m.shape, -1)
    if mask is not None:
        s = jnp.where(mask, s, -jnp.inf)
    new = jnp.maximum(m, s.max(-1))
    base = _finite_base(new)
    p = jnp.exp(s - base[..., None])
    keep = jnp.exp(m - base)
    weights = p.astype(call.dtype).reshape(*acc.shape[:-1], -1)
    pv = product("bkij,bkjw->bkiw", weights, v, dtype=call.dtype)
    return _State(m=new, total=total * keep + p.sum(-1), acc=acc * _column(keep) + pv)


def _end(
    call: AttentionCall, sinks: Float[Array, " n"] | None, state: _State
) -> tuple[Array, Array, Array]:
    """Returns (out, lse, largest logit) of each row. A sink joins the denominator last."""
    m, total, acc = state
    base = _finite_base(m)
    if sinks is not None:
        sinks = sinks.astype(m.dtype).reshape(1, call.kv_heads, -1, 1)
        base = _finite_base(jnp.maximum(m, sinks))
        keep = jnp.exp(m - base)
        total, acc = total * keep + jnp.exp(sinks - base), acc * _column(keep)
    none = total == 0
    total = jnp.where(none, 1, total)
    return acc / _column(total), jnp.where(none, -jnp.inf, base + jnp.log(total)), m


def _finite_base(m: Array) -> Array:
    """Returns m with 0 for -inf, to subtract in exponents: exp(-inf - -inf) would be NaN."""
    return jnp.where(m == -jnp.inf, 0, m)


def _column(x: Float[Array, "b k g i"]) -> Float[Array, "b k gi 1"]:
    return x.reshape(*x.shape[:2], -1, 1)


def bias_rows(
    call: AttentionCall, bias: Float[Array, "b n t s"] | None, at: pairwise.Place
) -> Float[Array, "_ _ gi _"] | None:
    """Returns a block of the bias with the rows of `tiles.query_block`, to add to their logits.

    Args:
        call: The call.
        bias: The bias, padded to whole blocks; None for none.
        at: The block.
    """
    if bias is None:
        return None
    x = pairwise.by_group(pairwise.block(bias, at), call.kv_heads).astype(call.inner_dtype)
    shape = (*x.shape[:2], call.heads // call.kv_heads, at.queries.size, x.shape[4])
    return jnp.broadcast_to(x, shape).reshape(*shape[:2], -1, shape[4])
