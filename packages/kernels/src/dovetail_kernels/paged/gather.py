# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Paged attention in blocks of keys, gathered by the page table, for every backend.

Each tile of queries (see `tiles`) visits the blocks of pages visible to its rows, with the running
maximum and sum of FlashAttention-2 (2307.08691, algorithm 1). Loop bounds are values: a short
request costs little beside a long one, and no array is as large as the reach of the page table.

Tiles go through the loop in groups, one tile per lane. On CPU a group has one lane: two lanes
together overflow the cache and cost more than one after the other. Elsewhere it has many lanes,
sorted by their number of blocks: a device needs the width, and a finished lane waits for the
longest of its group.

A block begins at a multiple of its length, counted from the first key. A finished lane adds exact
zeros. A tile holds rows of one request. The rest of the batch therefore does not change a row's
arithmetic, and on CPU not even its bits.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from dovetail_kernels.dispatch import Implementation, Work
from dovetail_kernels.paged.call import PagedCall
from dovetail_kernels.paged.requests import Requests, requests
from dovetail_kernels.paged.tiles import SIZES, Tiles, tiles
from dovetail_kernels.precision import product
from dovetail_kernels.varying import varying

# Keys per block, in whole pages. On CPU 64 to 128 keys of 8 heads by 128 stay in the second-level
# cache between the gather and the products. The result's bits depend on it, so it depends only on
# the page size.
BLOCK = 128


class _Lanes(NamedTuple):
    """Tiles that go through the loop together. All arrays are i32[L].

    Attributes:
        request: Request of the tile.
        row: First row of the tile in q.
        rows: Number of rows in the tile.
        position: Position of the first row.
        begin: First block visible to some row.
        end: End of the blocks visible to some row.
    """

    request: Int[Array, " L"]
    row: Int[Array, " L"]
    rows: Int[Array, " L"]
    position: Int[Array, " L"]
    begin: Int[Array, " L"]
    end: Int[Array, " L"]


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
    if not call.requests or not call.queries:
        return jnp.zeros_like(q)
    batch = requests(call, page_table, kv_lengths, q_starts)
    lanes = _lanes_of_a_group(call.device.platform)
    # The last tile of a batch may reach beyond its last row.
    padded = jnp.pad(q, ((0, SIZES[-1]), (0, 0), (0, 0)))
    per_block = max(1, BLOCK // call.page_size)
    page_ids = jnp.pad(batch.page_ids, ((0, 0), (0, -call.columns % per_block)))
    batch = batch._replace(page_ids=page_ids)
    out = varying(jnp.zeros(q.shape, call.inner), q)
    for some in tiles(batch.counts, rows=call.queries):
        out = _attend(out, padded, pages, sinks, batch, some, call=call, lanes=lanes[some.size])
    return jnp.where(batch.row_bad[:, None, None], jnp.nan, out).astype(q.dtype)


def _lanes_of_a_group(platform: str) -> dict[int, int]:
    """Returns the lanes of a group for each tile size: about equally many rows in every group."""
    if platform == "cpu":
        return dict.fromkeys(SIZES, 1)
    return dict(zip(SIZES, (64, 32, 8), strict=True))


def _attend(
    out: Any,
    q: Any,
    pages: Any,
    sinks: Any,
    batch: Requests,
    some: Tiles,
    *,
    call: PagedCall,
    lanes: int,
) -> Any:
    """Returns `out` with the rows of these tiles filled."""
    every = _bounds(batch, some, call=call)
    if lanes > 1:
        order = jnp.argsort(every.begin - every.end)
        fill = -len(order) % lanes
        every = _Lanes(*(jnp.pad(x[order], (0, fill)) for x in every))

    def group(i: Any, out: Any) -> Any:
        these = _Lanes(*(lax.dynamic_slice(x, (i * lanes,), (lanes,)) for x in every))
        attended = _lanes(q, pages, sinks, batch.page_ids, these, size=some.size, call=call)
        nth = jnp.arange(some.size, dtype=jnp.int32)[None]
        rows = jnp.where(nth < these.rows[:, None], these.row[:, None] + nth, out.shape[0])
        return out.at[rows].set(attended, mode="drop")

    return lax.fori_loop(jnp.int32(0), (some.real + lanes - 1) // lanes, group, out)


def _bounds(batch: Requests, some: Tiles, *, call: PagedCall) -> _Lanes:
    position = batch.first[some.request] + some.offset
    keys = max(1, BLOCK // call.page_size) * call.page_size
    end = jnp.where(some.rows > 0, (position + some.rows + keys - 1) // keys, 0)
    begin = jnp.zeros_like(end)
    if call.window is not None:
        window = min(call.window, call.keys + 1)
        begin = jnp.minimum(jnp.maximum(position - window + 1, 0) // keys, end)
    row = batch.starts[some.request] + some.offset
    row = jnp.where(some.rows > 0, row, 0)
    return _Lanes(some.request, row, some.rows, position, begin, end)


def _lanes(
    q: Any, pages: Any, sinks: Any, page_ids: Any, these: _Lanes, *, size: int, call: PagedCall
) -> Any:
    """Computes attention for the tiles in these lanes, [L, size, N, H].

    Suffixes: L lanes, B keys of a block, K key heads, G query heads of one key head times size, H
    width.
    """
    lanes, heads, width = len(these.row), q.shape[1], q.shape[2]
    kv_heads = pages.shape[3]
    dtype = jnp.dtype(call.inner)
    floor = float(jnp.finfo(dtype).min)  # finite, for -inf - -inf would be NaN
    tile = jax.vmap(lambda row: lax.dynamic_slice_in_dim(q, row, size))(these.row)
    tile = tile.astype(dtype).reshape(lanes, size, kv_heads, -1, width)
    q_LKGH = (tile * call.scale).transpose(0, 2, 3, 1, 4).reshape(lanes, kv_heads, -1, width)
    group = q_LKGH.shape[2]
    bits = call.device.platform == "cpu" and pages.dtype == jnp.bfloat16
    nth = jnp.tile(jnp.arange(size, dtype=jnp.int32), group // size)
    position_LG = these.position[:, None] + nth[None]
    last_L = these.position + these.rows
    ids_LC = page_ids[these.request]

    def block(carry: Any) -> Any:
        i, maximum, total, acc = carry
        k_LBKH, v_LBKH, key_LB = _block(pages, ids_LC, these.begin + i, i, bits=bits)
        seen_LGB = key_LB[:, None] <= position_LG[..., None]
        if call.window is not None:
            oldest = position_LG[..., None] - min(call.window, call.keys + 1)
            seen_LGB &= key_LB[:, None] > oldest
        seen = (seen_LGB & (key_LB < last_L[:, None])[:, None])[:, None]
        s = product("lkgh,lbkh->lkgb", q_LKGH, k_LBKH.astype(dtype), dtype=call.dtype)
        if call.soft_cap is not None:
            s = call.soft_cap * jnp.tanh(s / call.soft_cap)
        higher = jnp.maximum(maximum, jnp.max(s, axis=3, where=seen, initial=floor))
        p = jnp.where(seen, jnp.exp(s - higher[..., None]), 0)
        # 0 × NaN is NaN, and keys that no row sees may be anything: their values are left out too.
        used_LB = jnp.any(seen[:, 0], axis=1)[..., None, None]
        v = jnp.where(used_LB, v_LBKH, 0).astype(dtype)
        scaled = jnp.exp(maximum - higher)
        acc = acc * scaled[..., None] + product("lkgb,lbkh->lkgh", p, v, dtype=call.dtype)
        return i + 1, higher, total * scaled + jnp.sum(p, axis=3), acc

    maximum = jnp.full((lanes, kv_heads, group), floor, dtype)
    total = jnp.zeros_like(maximum)
    if sinks is not None:  # a logit of its own, whose value is zero
        sink = jnp.repeat(sinks.astype(dtype).reshape(1, kv_heads, -1), size, axis=2)
        maximum = jnp.maximum(maximum, sink)
        total = jnp.exp(sink - maximum)
    steps = jnp.max(these.end - these.begin)
    acc = jnp.zeros((lanes, kv_heads, group, width), dtype)
    start = (jnp.int32(0), *varying((maximum, total, acc), q))
    _, _, total, acc = lax.while_loop(lambda carry: carry[0] < steps, block, start)
    # An empty lane gives 0 / 0, and its rows are dropped.
    return (acc / total[..., None]).reshape(lanes, heads, size, width).swapaxes(1, 2)


def _block(pages: Any, ids_LC: Any, block_L: Any, step: Any, *, bits: bool) -> tuple[Any, Any, Any]:
    """Returns keys and values of one block per lane, [L, B, K, H], and their positions, [L, B]."""
    page_size, kv_heads, width = pages.shape[1], *pages.shape[3:]
    per_block = max(1, BLOCK // page_size)
    # A finished lane reads its last block again; every position there is beyond its rows.
    column = jnp.minimum(block_L * per_block, ids_LC.shape[1] - per_block)
    ids = jax.vmap(lambda row, at: lax.dynamic_slice(row, (at,), (per_block,)))(ids_LC, column)
    keys = per_block * page_size
    key_LB = block_L[:, None] * keys + jnp.arange(keys, dtype=jnp.int32)[None]

    def gathered(which: int) -> Any:
        kv = _rows(pages, ids, which, step, bits=bits)
        return kv.reshape(len(ids), keys, kv_heads, width)

    return gathered(0), gathered(1), key_LB


def _rows(pages: Any, ids: Any, which: int, step: Any, *, bits: bool) -> Any:
    """Gathers pages[ids, :, which], keys or values: each is transposed for its own product.

    `bits` gathers them as integers. XLA for CPU computes a bfloat16 gather in float32 (until jax
    0.12), converts all pages for it, and moves the conversion out of the loop: a float32 copy of
    the cache. Integers are gathered unchanged, and the barrier, with the step in it, keeps their
    conversion inside.
    """
    if not bits:
        return pages.at[ids, :, which].get(mode="promise_in_bounds")
    pages, _ = lax.optimization_barrier((pages, step))
    integers = lax.bitcast_convert_type(pages, jnp.uint16)
    gathered = integers.at[ids, :, which].get(mode="promise_in_bounds")
    return lax.bitcast_convert_type(gathered, pages.dtype)


def _work(call: PagedCall) -> Work:
    """Returns the cost if every request has the longest length, in as few tiles as possible."""
    size = jnp.dtype(call.dtype).itemsize
    reads = call.queries // SIZES[-1] + min(call.requests, call.queries)
    kept = max(size, 4)
    block = call.keys * 2 * call.kv_heads * call.width
    rows = call.queries * call.heads * call.width
    return Work(
        flops=4 * rows * call.keys,
        bytes=reads * block * (size + 2 * kept) + rows * (2 * size + 2 * kept),
    )


GATHER = Implementation[PagedCall](name="gather", refuse=lambda call: None, work=_work, run=run)
