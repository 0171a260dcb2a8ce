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

A GPU waits for the host at each turn of a loop. Its blocks are therefore as long as `GPU_BYTES`
allow, and a loop of one turn is no loop. With as many requests as rows, as in decoding, each row is
a tile of its own.

A block begins at a multiple of its length, counted from the first key. A finished lane adds exact
zeros. A tile holds rows of one request. The rest of the batch therefore does not change a row's
arithmetic, and on CPU not even its bits. With `invariant` all tiles have one size; on CPU the
other rows of the request then do not change a row's bits either.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from dovetail_kernels.costs_in_names import trips
from dovetail_kernels.dispatch import Implementation, Work
from dovetail_kernels.mesh import varying
from dovetail_kernels.paged.call import PagedCall, PagedInputs
from dovetail_kernels.paged.pages import QuantizedPages, codes_of
from dovetail_kernels.paged.requests import Requests, requests
from dovetail_kernels.paged.tiles import INVARIANT, SIZES, Tiles, tiles
from dovetail_kernels.precision import product
from dovetail_kernels.symbolic import is_symbolic

# Keys per block, in whole pages. On CPU 64 to 128 keys of 8 heads by 128 stay in the second-level
# cache between the gather and the products. The result's bits depend on it, so it depends only on
# the page size.
BLOCK = 128
# Bytes of the keys, values, logits and weights of one turn on a GPU. A turn costs a wait for the
# host and ten launches: about 50 us on an H100, in which it could read 150 MB.
GPU_BYTES = 2**27
# Keys per block at most, for a short request is read to the end of its block: 8 MB in a layer with
# 8 key heads of 64 elements in bfloat16, or 3 us.
GPU_BLOCK = 4096


class _Out(NamedTuple):
    """Results of all rows, or of those of some tiles.

    Attributes:
        rows: Output [M, N, G], in the compute dtype.
        lse: Log-sum-exp [M, N], or None.
    """

    rows: Float[Array, "*M N G"]
    lse: Float[Array, "*M N"] | None


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


def run(call: PagedCall, inputs: PagedInputs) -> Any:
    """Computes softmax(scale q·k) v of each row, over its visible keys.

    Returns:
        Output [M, N, G] in q's dtype, computed in float32, or float64 for float64. With `call.lse`
        also lse [M, N].
    """
    q, pages, page_table, kv_lengths, q_starts, sinks = inputs
    shape = (*q.shape[:2], call.out_width)
    out = varying(_Out(jnp.zeros(shape, call.inner), _no_lse(call, shape[:2])), q)
    if not call.requests or not call.queries:
        return _finished(call, out, jnp.zeros(call.queries, bool), q.dtype)
    batch = requests(call, page_table, kv_lengths, q_starts)
    # The last tile of a batch may reach beyond its last row.
    padded = jnp.pad(q, ((0, SIZES[-1]), (0, 0), (0, 0)))
    for some in tiles(batch.counts, rows=call.queries, sizes=_sizes(call)):
        out = _attend(out, padded, pages, sinks, batch, some, call=call)
    return _finished(call, out, batch.row_bad, q.dtype)


def _sizes(call: PagedCall) -> tuple[int, ...]:
    """Returns the rows of tiles.

    On CPU the bits of a product depend on its size: a row alone differs from one of eight, and for
    heads of 32 elements one of eight from one of 64 (jax 0.10.2).
    """
    if call.invariant:
        return INVARIANT
    return (1,) if call.device.platform == "gpu" and call.queries <= call.requests else SIZES


def _longest(call: PagedCall) -> int:
    """Returns the rows of the longest tile in use: see `tiles`."""
    sizes = _sizes(call)
    return next((size for size in sizes if size >= call.queries), sizes[-1])


def _no_lse(call: PagedCall, shape: tuple[int, ...]) -> Any:
    return jnp.full(shape, -jnp.inf, call.inner) if call.lse else None


def _finished(call: PagedCall, out: _Out, bad: Any, dtype: Any) -> Any:
    """Returns the output, or the pair with lse, with NaN in rows of invalid requests."""
    rows = jnp.where(bad[:, None, None], jnp.nan, out.rows).astype(dtype)
    if out.lse is None:
        return rows
    return rows, jnp.where(bad[:, None], jnp.nan, out.lse)


def _lanes_of_a_group(platform: str) -> dict[int, int]:
    """Returns the lanes of a group for each tile size: about equally many rows in every group."""
    if platform == "cpu":
        return dict.fromkeys(SIZES, 1)
    return dict(zip(SIZES, (64, 32, 8), strict=True))


def _pages_of_a_block(call: PagedCall, *, rows: int, lanes: int) -> int:
    """Returns the pages of a block of keys, for `lanes` tiles of `rows` rows.

    On a GPU blocks are about equally long, so that the last one has few pages beyond the table.
    """
    least = max(1, BLOCK // call.page_size)
    if call.device.platform != "gpu":
        return least
    entries = 2 if call.value_width is None else 1
    kept = entries * call.kv_heads * call.width * jnp.dtype(call.pages_dtype).itemsize
    of_key = lanes * (kept + 2 * rows * call.heads * jnp.dtype(call.inner).itemsize)
    keys = min(GPU_BYTES // of_key, GPU_BLOCK, call.keys if call.window is None else call.window)
    blocks = -(-call.columns // max(least, keys // call.page_size))
    return max(least, -(-call.columns // blocks))


def _attend(
    out: _Out,
    q: Any,
    pages: Any,
    sinks: Any,
    batch: Requests,
    some: Tiles,
    *,
    call: PagedCall,
) -> _Out:
    """Returns `out` with the rows of these tiles filled."""
    count = len(some.rows)
    lanes = min(_lanes_of_a_group(call.device.platform)[some.size], count)
    per_block = _pages_of_a_block(call, rows=some.size, lanes=lanes)
    page_ids = jnp.pad(batch.page_ids, ((0, 0), (0, -call.columns % per_block)))
    every = _bounds(batch, some, call=call, keys=per_block * call.page_size)
    if 1 < lanes < count:
        order = jnp.argsort(every.begin - every.end)
        fill = -count % lanes
        every = _Lanes(*(jnp.pad(x[order], (0, fill)) for x in every))

    def group(i: Any, out: _Out) -> _Out:
        these = _Lanes(*(lax.dynamic_slice(x, (i * lanes,), (lanes,)) for x in every))
        attended = _lanes(q, pages, sinks, page_ids, these, size=some.size, call=call)
        nth = jnp.arange(some.size, dtype=jnp.int32)[None]
        rows = jnp.where(nth < these.rows[:, None], these.row[:, None] + nth, call.queries)
        return jax.tree.map(lambda a, new: a.at[rows].set(new, mode="drop"), out, attended)

    if call.device.platform == "gpu" and lanes == count and len(_sizes(call)) == 1:
        return group(0, out)
    # Requests decide the sizes of tiles. All rows count as if in the longest ones.
    with trips(call.queries if some.size == _longest(call) else 0, some.size * lanes):
        return lax.fori_loop(jnp.int32(0), (some.real + lanes - 1) // lanes, group, out)


def _bounds(batch: Requests, some: Tiles, *, call: PagedCall, keys: int) -> _Lanes:
    position = batch.first[some.request] + some.offset
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
) -> _Out:
    """Computes attention for the tiles in these lanes, [L, size, N, G].

    Suffixes: L lanes, B keys of a block, K key heads, G query heads of one key head times size, H
    width.
    """
    lanes, heads, width = len(these.row), q.shape[1], q.shape[2]
    kv_heads = codes_of(pages).shape[3]
    dtype = jnp.dtype(call.inner)
    floor = _floor(dtype)
    tile = jax.vmap(lambda row: lax.dynamic_slice_in_dim(q, row, size))(these.row)
    tile = tile.astype(dtype).reshape(lanes, size, kv_heads, -1, width)
    q_LKGH = (tile * call.scale).transpose(0, 2, 3, 1, 4).reshape(lanes, kv_heads, -1, width)
    group = q_LKGH.shape[2]
    gpu = call.device.platform == "gpu"
    per_block = _pages_of_a_block(call, rows=size, lanes=lanes)
    bits = call.device.platform == "cpu" and call.pages_dtype in ("bfloat16", "float8_e4m3fn")
    nth = jnp.tile(jnp.arange(size, dtype=jnp.int32), group // size)
    position_LG = these.position[:, None] + nth[None]
    last_L = these.position + these.rows
    ids_LC = page_ids[these.request]

    def block(carry: Any) -> Any:
        i, maximum, total, acc = carry
        kv, key_LB = _block(
            pages, ids_LC, these.begin + i, i, per_block=per_block, bits=bits, gpu=gpu
        )
        seen_LGB = key_LB[:, None] <= position_LG[..., None]
        if call.window is not None:
            oldest = position_LG[..., None] - min(call.window, call.keys + 1)
            seen_LGB &= key_LB[:, None] > oldest
        seen = (seen_LGB & (key_LB < last_L[:, None])[:, None])[:, None]
        k_LKBH = _by_head(kv.k.astype(dtype), platform=call.device.platform)
        s = product("lkgh,lkbh->lkgb", q_LKGH, k_LKBH, dtype=call.operands)
        if kv.k_scales is not None:
            s = s * kv.k_scales.swapaxes(1, 2)[:, :, None]
        if call.soft_cap is not None:
            s = call.soft_cap * jnp.tanh(s / call.soft_cap)
        higher = jnp.maximum(maximum, jnp.max(s, axis=3, where=seen, initial=floor))
        p = jnp.where(seen, jnp.exp(s - higher[..., None]), 0)
        # 0 × NaN is NaN, and keys that no row sees may be anything: their values are left out too.
        used_LB = jnp.any(seen[:, 0], axis=1)[..., None]
        v = jnp.where(used_LB[..., None], kv.v[..., : call.out_width], 0).astype(dtype)
        weights = p
        if kv.v_scales is not None:
            weights = p * jnp.where(used_LB, kv.v_scales, 0).swapaxes(1, 2)[:, :, None]
        scaled = jnp.exp(maximum - higher)
        pv = product("lkgb,lbkh->lkgh", weights, v, dtype=call.operands)
        return i + 1, higher, total * scaled + jnp.sum(p, axis=3), acc * scaled[..., None] + pv

    steps = jnp.max(these.end - these.begin)
    sums = _before_all((lanes, kv_heads, group), sinks, size=size, call=call)
    start = (jnp.int32(0), *varying(sums, q))
    if gpu and ids_LC.shape[1] == per_block:
        _, maximum, total, acc = block(start)
    else:
        with trips(min(call.window or call.keys, call.keys), per_block * call.page_size):
            _, maximum, total, acc = lax.while_loop(lambda carry: carry[0] < steps, block, start)
    # An empty lane gives 0 / 0, and its rows are dropped.
    out = (acc / total[..., None]).reshape(lanes, heads, size, call.out_width).swapaxes(1, 2)
    if not call.lse:
        return _Out(out, None)
    return _Out(out, (maximum + jnp.log(total)).reshape(lanes, heads, size).swapaxes(1, 2))


def _floor(dtype: Any) -> float:
    return float(jnp.finfo(dtype).min)  # finite, for -inf - -inf would be NaN


def _before_all(
    shape: tuple[int, int, int], sinks: Any, *, size: int, call: PagedCall
) -> tuple[Array, Array, Array]:
    """Returns maximum, total and weighted values [L, K, G] before the first key."""
    dtype = jnp.dtype(call.inner)
    maximum = jnp.full(shape, _floor(dtype), dtype)
    total = jnp.zeros_like(maximum)
    if sinks is not None:  # a logit of its own, whose value is zero
        sink = jnp.repeat(sinks.astype(dtype).reshape(1, shape[1], -1), size, axis=2)
        maximum = jnp.maximum(maximum, sink)
        total = jnp.exp(sink - maximum)
    return maximum, total, jnp.zeros((*shape, call.out_width), dtype)


class _Block(NamedTuple):
    """Keys and values of one block per lane, as stored [L, B, K, H], and their scales [L, B, K].

    Values of latent pages are the keys. Scales are None for pages of floats.
    """

    k: Any
    v: Any
    k_scales: Any
    v_scales: Any


def _block(
    pages: Any, ids_LC: Any, block_L: Any, step: Any, *, per_block: int, bits: bool, gpu: bool
) -> tuple[_Block, Any]:
    """Returns one block per lane, and the positions of its keys, [L, B]."""
    codes = codes_of(pages)
    page_size = codes.shape[2]
    # A finished lane reads its last block again; every position there is beyond its rows.
    column = jnp.minimum(block_L * per_block, ids_LC.shape[1] - per_block)
    ids = jax.vmap(lambda row, at: lax.dynamic_slice(row, (at,), (per_block,)))(ids_LC, column)
    if gpu:  # else XLA finds the page again for each number in it
        ids = lax.optimization_barrier(ids)
    keys = per_block * page_size
    key_LB = block_L[:, None] * keys + jnp.arange(keys, dtype=jnp.int32)[None]

    def gathered(array: Any, which: int, *, bits: bool) -> Any:
        return _rows(array, ids, which, step, bits=bits).reshape(len(ids), keys, *array.shape[3:])

    which = range(codes.shape[1])
    kv = [gathered(codes, i, bits=bits) for i in which]
    scales = [None]
    if isinstance(pages, QuantizedPages):
        scales = [gathered(pages.scales, i, bits=False) for i in which]
    return _Block(kv[0], kv[-1], scales[0], scales[-1]), key_LB


def _by_head(k_LBKH: Any, *, platform: str) -> Any:
    """Returns the keys of each head one after the other, [L, K, B, H].

    XLA for CPU transposes a product's operand to [L, K, H, B] by itself, element by element over
    a stride of all heads: most of the time of a decoding step. A barrier leaves it this order.
    """
    k_LKBH = k_LBKH.swapaxes(1, 2)
    return lax.optimization_barrier(k_LKBH) if platform == "cpu" else k_LKBH


def _rows(pages: Any, ids: Any, which: int, step: Any, *, bits: bool) -> Any:
    """Gathers pages[ids, which], keys or values: each is transposed for its own product.

    `bits` gathers them as integers. XLA for CPU computes a bfloat16 gather in float32 (until jax
    0.12; one of float8 in float16), converts all pages for it, and moves the conversion out of the
    loop: a wider copy of the cache. Integers are gathered unchanged, and the barrier, with the step
    in it, keeps their conversion inside.
    """
    if not bits:
        return pages.at[ids, which].get(mode="promise_in_bounds")
    pages, _ = lax.optimization_barrier((pages, step))
    integers = lax.bitcast_convert_type(pages, f"uint{8 * pages.dtype.itemsize}")
    gathered = integers.at[ids, which].get(mode="promise_in_bounds")
    return lax.bitcast_convert_type(gathered, pages.dtype)


def _work(call: PagedCall) -> Work:
    """Returns the cost if every request has the longest length, in as few tiles as possible."""
    size, read = (jnp.dtype(dtype).itemsize for dtype in (call.dtype, call.pages_dtype))
    full = call.queries // _sizes(call)[-1]
    reads = min(full + min(call.requests, call.queries), call.queries)
    kept = max(size, 4)
    entries = 2 if call.value_width is None else 1
    vectors = reads * call.keys * entries * call.kv_heads
    scales = 4 * vectors if call.quantized else 0
    rows = call.queries * call.heads * (call.width + call.out_width)
    return Work(
        flops=2 * rows * call.keys,
        bytes=vectors * call.width * (read + 2 * kept) + scales + rows * (size + kept),
        peak_bytes=_peak_bytes(call),
    )


def _peak_bytes(call: PagedCall) -> int:
    """Counts the padded queries, the output in float32, and the tiles of one step of the loop."""
    size, kept = jnp.dtype(call.dtype).itemsize, jnp.dtype(call.inner).itemsize
    sizes = _sizes(call)
    used = [n for i, n in enumerate(sizes) if i == 0 or sizes[i - 1] < call.queries]  # see `tiles`
    padded = (call.queries + SIZES[-1]) * call.heads * call.width * size
    out = call.queries * call.heads * call.out_width * kept
    return padded + out + max(_step_bytes(call, rows) for rows in used)


def _step_bytes(call: PagedCall, rows: int) -> int:
    """Returns the bytes of one step of the loop, for tiles of `rows` rows."""
    gpu, kept = call.device.platform == "gpu", jnp.dtype(call.inner).itemsize
    lanes = min(_lanes_of_a_group(call.device.platform)[rows], call.queries)
    keys = _pages_of_a_block(call, rows=rows, lanes=lanes) * call.page_size
    # Queries, the sum and its update; logits and weights; keys and values of each lane, which a
    # GPU converts inside its products.
    of_rows = rows * call.heads * (call.width + 2 * call.out_width + 2 * keys)
    read = jnp.dtype(call.pages_dtype).itemsize if gpu else kept
    return lanes * (of_rows * kept + 2 * keys * call.kv_heads * call.width * read)


def _refuse(call: PagedCall) -> str | None:
    sizes = {"rows": call.queries, "requests": call.requests, "columns": call.columns}
    sizes |= {"pages": call.pages, "page_size": call.page_size}
    symbolic = [f"{name}={size}" for name, size in sizes.items() if is_symbolic(size)]
    return f"cuts tiles and blocks of known sizes, not {', '.join(symbolic)}" if symbolic else None


GATHER = Implementation[PagedCall](name="gather", refuse=_refuse, work=_work, run=run)
