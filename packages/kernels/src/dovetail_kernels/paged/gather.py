# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Paged attention in blocks of keys that are gathered by the page table, for every backend.

Each tile of queries (see `tiles`) walks the blocks of pages that its own rows see, with the running
maximum and sum of FlashAttention-2 (2307.08691, algorithm 1). Bounds of the loops are values, so a
short request costs little beside a long one, and nothing is as large as the page table's reach.

Tiles go through the loop a few at a time, in `lanes`. On CPU one: two lanes together leave the
cache, and cost more than one after the other. Elsewhere many, sorted by their number of blocks, for
a device needs the width and a lane that is done waits for the longest of its group.

A block begins at a multiple of its length, counted from the first key; a lane that is done adds
exact zeros; a tile holds rows of one request. So a row's arithmetic is the same whatever else is in
the batch, and on CPU its bits are.
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

# Keys per block, in whole pages. On CPU 64 to 128 keys of 8 heads by 128 stay in the second-level
# cache between the gather and the products. It depends on nothing but the page, as bits do on it.
BLOCK = 128


class _Lanes(NamedTuple):
    """Tiles that go through the loop together; [L], and `last` is past the last visible key.

    position: of the first row. begin, end: the blocks that some row sees.
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
    """softmax(scale q·k) v of each row, over the keys that it sees; f32 inside, or f64."""
    if not call.requests or not call.queries:
        return jnp.zeros_like(q)
    batch = requests(call, page_table, kv_lengths, q_starts)
    lanes = _lanes_of_a_group(call.device.platform)
    # The last tile of a batch may reach beyond its last row.
    padded = jnp.pad(q, ((0, SIZES[-1]), (0, 0), (0, 0)))
    per_block = max(1, BLOCK // call.page_size)
    page_ids = jnp.pad(batch.page_ids, ((0, 0), (0, -call.columns % per_block)))
    batch = batch._replace(page_ids=page_ids)
    out = jnp.zeros(q.shape, call.inner)
    for some in tiles(batch.counts, rows=call.queries):
        out = _attend(out, padded, pages, sinks, batch, some, call=call, lanes=lanes[some.size])
    return jnp.where(batch.row_bad[:, None, None], jnp.nan, out).astype(q.dtype)


def _lanes_of_a_group(platform: str) -> dict[int, int]:
    """For each size of tile, how many go together: about as many rows in every group."""
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
    """`out` with the rows of these tiles filled."""
    every = _bounds(batch, some, call=call)
    if lanes > 1:
        order = jnp.argsort(every.begin - every.end)
        fill = -len(order) % lanes
        every = _Lanes(*(jnp.pad(x[order], (0, fill)) for x in every))

    def group(i: Any, out: Any) -> Any:
        these = _Lanes(*(lax.dynamic_slice(x, (i * lanes,), (lanes,)) for x in every))
        found = _lanes(q, pages, sinks, batch.page_ids, these, size=some.size, call=call)
        nth = jnp.arange(some.size, dtype=jnp.int32)[None]
        rows = jnp.where(nth < these.rows[:, None], these.row[:, None] + nth, out.shape[0])
        return out.at[rows].set(found, mode="drop")

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
    """Attention of the tiles in these lanes, [L, size, N, H].

    Suffixes: L lanes, B blocks' keys, K key heads, G query heads of one key head times size, H.
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
        s = jnp.einsum("lkgh,lbkh->lkgb", q_LKGH, k_LBKH.astype(dtype))
        if call.soft_cap is not None:
            s = call.soft_cap * jnp.tanh(s / call.soft_cap)
        higher = jnp.maximum(maximum, jnp.max(s, axis=3, where=seen, initial=floor))
        p = jnp.where(seen, jnp.exp(s - higher[..., None]), 0)
        # 0 × NaN is NaN, and keys that no row sees may be anything: their values are left out too.
        used_LB = jnp.any(seen[:, 0], axis=1)[..., None, None]
        v = jnp.where(used_LB, v_LBKH, 0).astype(dtype)
        scaled = jnp.exp(maximum - higher)
        acc = acc * scaled[..., None] + jnp.einsum("lkgb,lbkh->lkgh", p, v)
        return i + 1, higher, total * scaled + jnp.sum(p, axis=3), acc

    maximum = jnp.full((lanes, kv_heads, group), floor, dtype)
    total = jnp.zeros_like(maximum)
    if sinks is not None:  # a logit of its own, whose value is zero
        sink = jnp.repeat(sinks.astype(dtype).reshape(1, kv_heads, -1), size, axis=2)
        maximum = jnp.maximum(maximum, sink)
        total = jnp.exp(sink - maximum)
    steps = jnp.max(these.end - these.begin)
    start = (jnp.int32(0), maximum, total, jnp.zeros((lanes, kv_heads, group, width), dtype))
    _, _, total, acc = lax.while_loop(lambda carry: carry[0] < steps, block, start)
    # An empty lane gives 0 / 0, and its rows are dropped.
    return (acc / total[..., None]).reshape(lanes, heads, size, width).swapaxes(1, 2)


def _block(pages: Any, ids_LC: Any, block_L: Any, step: Any, *, bits: bool) -> tuple[Any, Any, Any]:
    """Keys and values of one block of each lane, [L, B, K, H], and their positions, [L, B]."""
    page_size, kv_heads, width = pages.shape[1], *pages.shape[3:]
    per_block = max(1, BLOCK // page_size)
    # A lane that is done reads its last block again; every position there is beyond its rows.
    column = jnp.minimum(block_L * per_block, ids_LC.shape[1] - per_block)
    ids = jax.vmap(lambda row, at: lax.dynamic_slice(row, (at,), (per_block,)))(ids_LC, column)
    keys = per_block * page_size
    key_LB = block_L[:, None] * keys + jnp.arange(keys, dtype=jnp.int32)[None]

    def gathered(which: int) -> Any:
        found = _rows(pages, ids, which, step, bits=bits)
        return found.reshape(len(ids), keys, kv_heads, width)

    return gathered(0), gathered(1), key_LB


def _rows(pages: Any, ids: Any, which: int, step: Any, *, bits: bool) -> Any:
    """pages[ids, :, which]: keys apart from values, as each is transposed for its product.

    bits: as integers. XLA for CPU computes a bfloat16 gather in float32 (until jax 0.12), converts
    all pages for it, and moves that out of the loop: a float32 copy of the cache. Integers are
    gathered as they are, and the barrier, with the step in it, keeps their conversion inside.
    """
    if not bits:
        return pages.at[ids, :, which].get(mode="promise_in_bounds")
    pages, _ = lax.optimization_barrier((pages, step))
    integers = lax.bitcast_convert_type(pages, jnp.uint16)
    found = integers.at[ids, :, which].get(mode="promise_in_bounds")
    return lax.bitcast_convert_type(found, pages.dtype)


def _work(call: PagedCall) -> Work:
    """Every request taken as long as the table allows, its rows in as few tiles as can be."""
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
