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

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from dovetail_kernels.arrays import Cut
from dovetail_kernels.attention import pairwise, tiles
from dovetail_kernels.attention.bounds import Visits, bounds, visible
from dovetail_kernels.attention.call import AttentionCall, Inputs
from dovetail_kernels.attention.forward import bias_rows, logits, over
from dovetail_kernels.costs_in_names import recomputed
from dovetail_kernels.mesh import varying
from dovetail_kernels.precision import product


class _Rows(NamedTuple):
    """One block of queries, by its number.

    `delta` is the row sum of dO ∘ O, minus the cotangent of lse. `lse` is inf, not -inf, in rows
    without visible keys and in padding: their probabilities exp(s - lse) are then 0 for any bias.
    """

    q: Float[Array, "b k gi h"]
    dout: Float[Array, "b k gi w"]
    lse: Float[Array, "b k 1 gi"]
    delta: Float[Array, "b k 1 gi"]
    block: Int[Array, ""]


class _State(NamedTuple):
    dq: Float[Array, "b k gi h"]
    dk: Float[Array, "b s k h"]
    dv: Float[Array, "b s k w"]
    dbias: Float[Array, "_ _ _ _"] | None


def backward(
    call: AttentionCall,
    inputs: Inputs,
    lse: Float[Array, "b t n"],
    delta: Float[Array, "b t n"],
    dout: Float[Array, "b t n w"],
    queries: Cut,
    keys: Cut,
) -> tuple[
    Float[Array, "b t n h"],
    Float[Array, "b s k h"],
    Float[Array, "b s k w"],
    Float[Array, "_ _ _ _"] | None,
]:
    """Computes the gradients (dq, dk, dv, dbias) of blocked attention.

    Args:
        call: The call.
        inputs: Its arrays.
        lse: Log-sum-exp of the forward [b, t, n].
        delta: Row sums of dO ∘ O, minus the cotangent of `lse` [b, t, n].
        dout: Cotangent of the output [b, t, n, w].
        queries: Blocks of queries.
        keys: Blocks of keys.

    Returns:
        (dq, dk, dv), of the shapes and dtype of q, k and v; dbias of the shape of the bias, in the
        inner dtype, or None without one.
    """
    at = bounds(call, inputs, queries, keys)
    by_query = [tiles.filled(x, queries) for x in (inputs.q, dout, delta[..., None])]
    lse = jnp.where(lse == -jnp.inf, jnp.inf, lse)
    by_query.append(tiles.filled(lse[..., None], queries, jnp.inf))
    k, v = tiles.filled(inputs.k, keys), tiles.filled(inputs.v, keys)

    bias = None if inputs.bias is None else pairwise.filled(inputs.bias, queries, keys)

    def block(sums: _State, visit: Visits) -> tuple[_State, None]:
        i = visit.block
        rows = _rows(call, i, *(tiles.query_block(x, i, queries, call.kv_heads) for x in by_query))

        def step(n: Array | int, state: _State, masked: bool) -> _State:
            ids = visit.ids[:, n]
            kj, vj = (tiles.key_block(x, ids, keys, call.kv_heads) for x in (k, v))
            mask = visible(call, at, visit, n) if masked else None
            place = pairwise.Place(i, ids, queries, keys)
            addend = bias_rows(call, bias, place)
            dqi, dkj, dvj, ds = _step(call, rows, kj, vj, addend, mask)
            return _State(
                dq=state.dq + dqi,
                dk=tiles.add_key_block(state.dk, dkj, ids, keys),
                dv=tiles.add_key_block(state.dv, dvj, ids, keys),
                dbias=pairwise.add_columns(state.dbias, ds, place),
            )

        zeros = varying(jnp.zeros(rows.q.shape, call.inner_dtype), rows.q)
        state = over(call, visit, at, step, sums._replace(dq=zeros))
        dq = tiles.put_query_block(sums.dq, state.dq * call.scale, i, queries)
        return state._replace(dq=dq), None

    dk, dv = (jnp.zeros(x.shape, call.inner_dtype) for x in (k, v))
    dbias = None if bias is None else jnp.zeros(bias.shape, call.inner_dtype)
    sums = varying(_State(dq=jnp.zeros_like(by_query[0]), dk=dk, dv=dv, dbias=dbias), inputs.q)
    (dq, dk, dv, dbias), _ = jax.lax.scan(block, sums, at.visits)
    dk, dv = (dk * call.scale).astype(call.dtype), dv.astype(call.dtype)
    if inputs.bias is not None and dbias is not None:
        dbias = dbias[:, :, : inputs.bias.shape[2], : inputs.bias.shape[3]]
    return dq[:, : call.queries], dk[:, : call.keys], dv[:, : call.keys], dbias


def _rows(
    call: AttentionCall, block: Array, q: Array, dout: Array, delta: Array, lse: Array
) -> _Rows:
    if call.masked:
        fine = jnp.isfinite(dout).all(-1, keepdims=True) & jnp.isfinite(delta)
        # lse is inf for a row without visible keys. This is not a non-finite value.
        fine &= jnp.isfinite(lse) | (lse == jnp.inf)
        q, dout = _finite(q), jnp.where(fine, dout, 0)
        lse, delta = jnp.where(fine, lse, jnp.nan), jnp.where(fine, delta, 0)
    lse, delta = lse.swapaxes(2, 3), delta.swapaxes(2, 3)
    return _Rows(q=q, dout=dout, lse=lse, delta=delta, block=block)


def _step(
    call: AttentionCall,
    rows: _Rows,
    k: Float[Array, "b k j h"],
    v: Float[Array, "b k j w"],
    bias: Float[Array, "_ _ _ _"] | None,
    mask: Bool[Array, "_ _ _ _ _"] | None,
) -> tuple[Array, Array, Array, Array]:
    """Computes the gradients of one block of queries and one of keys.

    Returns:
        (dq [b, k, gi, h], dk [b, k, j, h], dv [b, k, j, w], gradient of the scaled logits
        [b, k, j, gi]); dq and dk are not yet scaled.
    """
    if mask is not None:
        k, v = _finite(k), _finite(v)
    with recomputed():
        s, tanh = logits(call, k, rows.q, None if bias is None else bias.swapaxes(2, 3))
    p = jnp.exp(s - rows.lse)
    if mask is not None:
        by_head = p.reshape(*p.shape[:3], call.heads // call.kv_heads, -1)
        p = jnp.where(mask.transpose(0, 1, 4, 2, 3), by_head, 0).reshape(p.shape)
    dp = product("bkjw,bkiw->bkji", v, rows.dout, dtype=call.dtype)
    ds = p * (dp - rows.delta)
    if tanh is not None:
        ds = ds * (1 - tanh * tanh)
    dlogits, p, ds = ds, p.astype(call.dtype), ds.astype(call.dtype)
    dv = product("bkji,bkiw->bkjw", p, rows.dout, dtype=call.dtype)
    dk = product("bkji,bkih->bkjh", ds, rows.q, dtype=call.dtype)
    dq = product("bkji,bkjh->bkih", ds, k, dtype=call.dtype)
    return dq, dk, dv, dlogits


def _finite(x: Float[Array, "*n h"]) -> Float[Array, "*n h"]:
    return jnp.where(jnp.isfinite(x).all(-1, keepdims=True), x, 0)
