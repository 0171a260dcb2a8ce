# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Blocked attention backward: FlashAttention-2 (2307.08691), algorithm 2, over visited blocks.

It needs only `out` and `lse` of the forward, of any implementation. Blocks are visited by queries,
as in the forward. Each visit adds to the gradients of keys and values in memory. Logits are formed
with keys as rows. The products with Pᵀ and dSᵀ, two of five, then take matrices as stored, as XLA's
CPU dots need (contracting over the rows of both takes half as long again).

A non-finite value reaches only the gradients of rows that see it: see `forward`. Such a row
has lse NaN. Its probabilities are NaN for visible keys and zero for hidden ones. All operands of
the products are finite.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from dovetail_kernels.attention import tiles
from dovetail_kernels.attention.bounds import Cut, Visits, bounds, visible
from dovetail_kernels.attention.call import AttentionCall, Inputs
from dovetail_kernels.attention.forward import logits, over
from dovetail_kernels.precision import product
from dovetail_kernels.varying import varying


class _Rows(NamedTuple):
    """One block of queries. `delta` is the row sum of dO ∘ O, minus the cotangent of lse."""

    q: Float[Array, "b k gi h"]
    dout: Float[Array, "b k gi w"]
    lse: Float[Array, "b k 1 gi"]
    delta: Float[Array, "b k 1 gi"]


class _State(NamedTuple):
    dq: Float[Array, "b k gi h"]
    dk: Float[Array, "b s k h"]
    dv: Float[Array, "b s k w"]


def backward(
    call: AttentionCall,
    inputs: Inputs,
    lse: Float[Array, "b t n"],
    delta: Float[Array, "b t n"],
    dout: Float[Array, "b t n w"],
    queries: Cut,
    keys: Cut,
) -> tuple[Float[Array, "b t n h"], Float[Array, "b s k h"], Float[Array, "b s k w"]]:
    """Computes the gradients (dq, dk, dv) of blocked attention.

    Args:
        call: The call.
        inputs: Its arrays.
        lse: Log-sum-exp of the forward [b, t, n].
        delta: Row sums of dO ∘ O, minus the cotangent of `lse` [b, t, n].
        dout: Cotangent of the output [b, t, n, w].
        queries: Blocks of queries.
        keys: Blocks of keys.

    Returns:
        (dq, dk, dv), of the shapes and dtype of q, k and v.
    """
    at = bounds(call, inputs, queries, keys)
    by_query = [
        tiles.filled(x, queries) for x in (inputs.q, dout, lse[..., None], delta[..., None])
    ]
    k, v = tiles.filled(inputs.k, keys), tiles.filled(inputs.v, keys)

    def block(sums: tuple[Array, Array, Array], xs: tuple[Array, Visits]) -> tuple[Any, None]:
        dq, dk, dv = sums
        i, visit = xs
        rows = _rows(call, *(tiles.query_block(x, i, queries, call.kv_heads) for x in by_query))

        def step(n: Array | int, state: _State, masked: bool) -> _State:
            ids = visit.ids[:, n]
            kj, vj = (tiles.key_block(x, ids, keys) for x in (k, v))
            mask = visible(call, at, visit, n) if masked else None
            dqi, dkj, dvj = _step(call, rows, kj, vj, mask)
            return _State(
                dq=state.dq + dqi,
                dk=tiles.add_key_block(state.dk, dkj, ids, keys),
                dv=tiles.add_key_block(state.dv, dvj, ids, keys),
            )

        zeros = varying(jnp.zeros(rows.q.shape, call.inner_dtype), rows.q)
        state = _State(dq=zeros, dk=dk, dv=dv)
        state = over(visit, keys, at.conditional, step, state)
        return (tiles.put_query_block(dq, state.dq * call.scale, i, queries), *state[1:]), None

    sums = jnp.zeros_like(by_query[0]), *(jnp.zeros(x.shape, call.inner_dtype) for x in (k, v))
    sums = varying(sums, inputs.q)
    (dq, dk, dv), _ = jax.lax.scan(block, sums, (jnp.arange(queries.blocks), at.visits))
    dk, dv = (dk * call.scale).astype(call.dtype), dv.astype(call.dtype)
    return dq[:, : call.queries], dk[:, : call.keys], dv[:, : call.keys]


def _rows(call: AttentionCall, q: Array, dout: Array, lse: Array, delta: Array) -> _Rows:
    if call.masked:
        fine = jnp.isfinite(dout).all(-1, keepdims=True) & jnp.isfinite(delta)
        # lse is -inf for a row without visible keys. This is not a non-finite value.
        fine &= jnp.isfinite(lse) | (lse == -jnp.inf)
        q, dout = _finite(q), jnp.where(fine, dout, 0)
        lse, delta = jnp.where(fine, lse, jnp.nan), jnp.where(fine, delta, 0)
    return _Rows(q=q, dout=dout, lse=lse.swapaxes(2, 3), delta=delta.swapaxes(2, 3))


def _step(
    call: AttentionCall,
    rows: _Rows,
    k: Float[Array, "b k j h"],
    v: Float[Array, "b k j w"],
    mask: Bool[Array, "r i j"] | None,
) -> tuple[Float[Array, "b k gi h"], Float[Array, "b k j h"], Float[Array, "b k j w"]]:
    """Returns (dq, dk, dv) of one block of queries and one of keys; dq and dk not yet scaled."""
    if mask is not None:
        k, v = _finite(k), _finite(v)
    s, tanh = logits(call, k, rows.q)
    p = jnp.exp(s - rows.lse)
    if mask is not None:
        by_head = p.reshape(*p.shape[:3], call.heads // call.kv_heads, -1)
        p = jnp.where(mask.swapaxes(1, 2)[:, None, :, None, :], by_head, 0).reshape(p.shape)
    dp = product("bkjw,bkiw->bkji", v, rows.dout, dtype=call.dtype)
    ds = p * (dp - rows.delta)
    if tanh is not None:
        ds = ds * (1 - tanh * tanh)
    p, ds = p.astype(call.dtype), ds.astype(call.dtype)
    dv = product("bkji,bkiw->bkjw", p, rows.dout, dtype=call.dtype)
    dk = product("bkji,bkih->bkjh", ds, rows.q, dtype=call.dtype)
    dq = product("bkji,bkjh->bkih", ds, k, dtype=call.dtype)
    return dq, dk, dv


def _finite(x: Float[Array, "*n h"]) -> Float[Array, "*n h"]:
    return jnp.where(jnp.isfinite(x).all(-1, keepdims=True), x, 0)
