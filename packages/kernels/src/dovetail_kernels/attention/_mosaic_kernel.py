# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Attention forward as one kernel for Hopper GPUs, in Pallas's Mosaic GPU.

FlashAttention-2 (2307.08691, algorithm 1) with Hopper's tensor cores (wgmma) and bulk copies (TMA).
A thread block processes 128 queries of one head. Two warpgroups compute 64 of them each. A third
copies blocks of keys and values into shared memory, `_STAGES` ahead of their use.

Weights enter the second product through shared memory, not registers. Each product has a fresh
accumulator, added in registers. Both cost some speed, but the interpreter supports no other form.
It checks the kernel without a GPU, and the checked code should be the code in use.

Each query sees a range of key positions and a segment. This covers causal masks, windows and
lengths (`Masks`). The kernel reads only the listed blocks of keys, and compares positions only in
blocks with possibly hidden pairs.

A private module: on JAX 0.10 its import needs absl-py, a dependency not declared by JAX.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from dovetail_kernels import _compat
from dovetail_kernels.attention.mosaic_masks import Masks
from dovetail_kernels.dispatch import Work

# Register layout of a wgmma accumulator, and of vectors along its rows and its columns.
_TILE = plgpu.Layout.WGMMA
_ROW, _COLUMN = _TILE.reduce(1), _TILE.reduce(0)
_LOG2_E = math.log2(math.e)
# Warpgroups (128 threads) that compute; one more copies.
_COMPUTE = 2
# Queries of a warpgroup: the rows of one wgmma instruction.
_ROWS = 64
# Queries of a block of threads.
QUERIES = _COMPUTE * _ROWS
# Keys of a block, and blocks of keys in shared memory at once (197 of 227 KiB at widths of 128).
KEYS = 128
_STAGES = 2
# Registers of a thread. 65536 / 128 threads leaves 512 to three warpgroups. Copying needs few.
_REGISTERS_COMPUTE, _REGISTERS_COPY = 232, 40


class _Shared(NamedTuple):
    """Shared memory and its barriers. `full`: a copy has arrived. `free`: its data is used up."""

    q: Any
    k: Any
    v: Any
    weights: Any
    out: Any
    lse: Any
    largest: Any
    q_full: Any
    k_full: Any
    v_full: Any
    k_free: Any
    v_free: Any


def forward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    masks: Masks,
    sinks: jax.Array | None,
    scale: float,
    soft_cap: float | None,
    work: Work | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Runs the kernel.

    Args:
        q: Queries [B, T, N, H], bfloat16 or float16. T is a multiple of `QUERIES`, H of 64.
        k: Keys [B, S, K, H]. S is a multiple of `KEYS`.
        v: Values [B, S, K, G]. G is a multiple of 64.
        masks: Visible keys of each query.
        sinks: One logit per head, float32[N], added to the denominator. None for none.
        scale: Factor of the logits.
        soft_cap: Bound c of the logits, c tanh(logits / c). None for no bound.
        work: Cost of the call, for profiles and XLA's scheduler. None for no estimate.

    Returns:
        The output [B, T, N, G] in q's dtype, and float32 [B, N, T]: the log of the softmax's
        denominator, and the largest logit.
    """
    batch, queries, heads, _ = q.shape
    group = heads // k.shape[2]
    logits = functools.partial(_logits, scale=scale * _LOG2_E, soft_cap=soft_cap)

    def attention_forward(*refs: Any, **scratch: Any) -> None:
        q_ref, k_ref, v_ref, mask, sink, out_ref, lse_ref, largest_ref = refs
        shared = _Shared(**({"out": scratch["q"]} | scratch))
        b, i, n = lax.axis_index("batch"), lax.axis_index("block"), lax.axis_index("head")
        warpgroup = lax.axis_index("warpgroup")

        @pl.when(warpgroup < _COMPUTE)
        def _compute() -> None:
            plgpu.set_max_registers(_REGISTERS_COMPUTE, action="increase")
            rows = pl.ds(i * QUERIES + warpgroup * _ROWS, _ROWS)
            mine = _of_one_warpgroup(shared, warpgroup)
            plgpu.copy_gmem_to_smem(q_ref.at[b, rows, n], mine.q, mine.q_full)
            plgpu.barrier_wait(mine.q_full)
            state = _attend(mine, _of_rows(mask, b, i, rows), logits)
            _store(mine, state, None if sink is None else sink[n] * _LOG2_E)
            plgpu.copy_smem_to_gmem(mine.out, out_ref.at[b, rows, n])
            plgpu.copy_smem_to_gmem(mine.lse, lse_ref.at[b, n, rows])
            plgpu.copy_smem_to_gmem(mine.largest, largest_ref.at[b, n, rows])
            plgpu.wait_smem_to_gmem(0)

        @pl.when(warpgroup == _COMPUTE)
        def _copy() -> None:
            plgpu.set_max_registers(_REGISTERS_COPY, action="decrease")
            kv_head = lax.div(n, jnp.int32(group))
            kv = k_ref.at[b, :, kv_head], v_ref.at[b, :, kv_head]
            _copy_blocks(kv, shared, (mask.blocks.at[b, i], mask.some[b, i]))

    rows = jax.ShapeDtypeStruct((batch, heads, queries), jnp.float32)
    return _compat.kernel(
        attention_forward,
        out_type=(jax.ShapeDtypeStruct((*q.shape[:3], v.shape[3]), q.dtype), rows, rows),
        scratch_types=_scratch(q, v),
        grid=(heads, queries // QUERIES, batch),
        grid_names=("head", "block", "batch"),
        num_threads=_COMPUTE + 1,
        thread_name="warpgroup",
        compiler_params=plgpu.CompilerParams(
            approx_math=True, lowering_semantics=plgpu.LoweringSemantics.Lane
        ),
        cost=_cost(work, q.shape[3] + v.shape[3]),
    )(q, k, v, masks, sinks)


def _cost(work: Work | None, width: int) -> pl.CostEstimate | None:
    """Returns the estimate for XLA. A pair of query and key has 2 FLOPs a column and one exp2."""
    if work is None:
        return None
    pairs = work.flops // (2 * width)
    return pl.CostEstimate(flops=work.flops, transcendentals=pairs, bytes_accessed=work.bytes)


def _scratch(q: jax.Array, v: jax.Array) -> dict[str, Any]:
    """Returns the fields of `_Shared`, without `out` if the memory of the queries can hold it."""
    width, value_width = q.shape[3], v.shape[3]
    # Layout for TMA to write and wgmma to read a tile without bank conflicts.
    transforms = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))

    def tile(*shape: int) -> Any:
        return plgpu.SMEM(shape, q.dtype, transforms=transforms)

    rows = plgpu.SMEM((_COMPUTE, _ROWS), jnp.float32)
    full = plgpu.Barrier(num_barriers=_STAGES)
    free = plgpu.Barrier(num_barriers=_STAGES, num_arrivals=_COMPUTE)
    fields = _Shared(
        q=tile(_COMPUTE, _ROWS, width),
        k=tile(_STAGES, KEYS, width),
        v=tile(_STAGES, KEYS, value_width),
        weights=tile(_COMPUTE, _ROWS, KEYS),
        out=tile(_COMPUTE, _ROWS, value_width),
        lse=rows,
        largest=rows,
        q_full=plgpu.Barrier(num_barriers=_COMPUTE),
        k_full=full,
        v_full=full,
        k_free=free,
        v_free=free,
    )._asdict()
    if value_width == width:
        del fields["out"]
    return fields


def _of_one_warpgroup(shared: _Shared, warpgroup: Any) -> _Shared:
    own = ("q", "weights", "out", "lse", "largest", "q_full")
    return shared._replace(**{name: getattr(shared, name).at[warpgroup] for name in own})


def _of_rows(mask: Masks, b: Any, i: Any, rows: Any) -> Masks:
    """Returns the masks of some rows of block i: queries in registers, keys still in memory."""

    def own(ref: Any) -> Any:
        return None if ref is None else _compat.load(ref.at[b, rows], _ROW)

    return Masks(
        q_low=own(mask.q_low),
        q_high=own(mask.q_high),
        q_segment=own(mask.q_segment),
        k_position=mask.k_position.at[b],
        k_segment=None if mask.k_segment is None else mask.k_segment.at[b],
        blocks=mask.blocks.at[b, i],
        whole=mask.whole[b, i],
        some=mask.some[b, i],
    )


def _copy_blocks(kv: tuple[Any, Any], shared: _Shared, listed: tuple[Any, Any]) -> None:
    """Copies keys and values of listed blocks, each to its slot once both warpgroups are done."""
    blocks, count = listed

    @pl.loop(0, count)
    def _(step: Any) -> None:
        slot = lax.rem(step, jnp.int32(_STAGES))
        keys = pl.ds(blocks[step] * KEYS, KEYS)
        for ref, tile, full, free in (
            (kv[0], shared.k, shared.k_full, shared.k_free),
            (kv[1], shared.v, shared.v_full, shared.v_free),
        ):
            pl.when(step >= _STAGES)(functools.partial(plgpu.barrier_wait, free.at[slot]))
            plgpu.copy_gmem_to_smem(ref.at[keys], tile.at[slot], full.at[slot])


def _attend(mine: _Shared, sight: Masks, logits: Callable[[Any], Any]) -> tuple[Any, Any, Any]:
    """Returns the state of the recurrence: acc [rows, G], the sum of weights, the largest logit.

    Logits are in units of log 2, because the hardware computes exp2.
    """
    value_width = mine.v.shape[-1]

    def step(step: Any, state: tuple[Any, Any, Any], *, compare: bool) -> tuple[Any, Any, Any]:
        acc, total, largest = state
        slot = lax.rem(step, jnp.int32(_STAGES))
        plgpu.barrier_wait(mine.k_full.at[slot])
        s = _product(mine.q, mine.k.at[slot].transpose((1, 0)))
        plgpu.barrier_arrive(mine.k_free.at[slot])
        s = logits(s)
        if compare:
            s = jnp.where(_visible(sight, sight.blocks[step] * KEYS, s.shape), s, -jnp.inf)
        largest_now = jnp.maximum(largest, s.max(axis=1))
        # For rows without a visible key yet: exp2(-inf - 0) is 0, exp2(-inf + inf) would be NaN.
        origin = jnp.where(largest_now == -jnp.inf, 0.0, largest_now)
        p = jnp.exp2(s - _over(origin, s.shape))
        rescale = jnp.exp2(largest - origin)
        total = total * rescale + p.sum(axis=1)
        mine.weights[...] = p.astype(mine.weights.dtype)
        # The tensor cores read shared memory by another path than ordinary stores.
        plgpu.commit_smem()
        plgpu.barrier_wait(mine.v_full.at[slot])
        pv = _product(mine.weights, mine.v.at[slot])
        plgpu.barrier_arrive(mine.v_free.at[slot])
        return acc * _over(rescale, acc.shape) + pv, total, largest_now

    state = (
        plgpu.layout_cast(jnp.full((_ROWS, value_width), 0.0, jnp.float32), _TILE),
        plgpu.layout_cast(jnp.full((_ROWS,), 0.0, jnp.float32), _ROW),
        plgpu.layout_cast(jnp.full((_ROWS,), -jnp.inf, jnp.float32), _ROW),
    )
    state = lax.fori_loop(0, sight.whole, functools.partial(step, compare=False), state)
    return lax.fori_loop(sight.whole, sight.some, functools.partial(step, compare=True), state)


def _product(a: Any, b: Any) -> Any:
    """Returns a @ b in registers, for tiles in shared memory."""

    def run(accumulator: Any) -> Any:
        plgpu.wgmma(accumulator, a, b)
        return accumulator[...]

    return pl.run_scoped(run, plgpu.WGMMAAccumulatorRef((a.shape[0], b.shape[1]), jnp.float32))


def _logits(s: Any, *, scale: float, soft_cap: float | None) -> Any:
    """Scales and caps products. Logits and `scale` are in units of log 2."""
    s = s * scale
    if soft_cap is None:
        return s
    # tanh(x) = 1 - 2 / (exp(2 x) + 1): the hardware's own tanh has 11 bits.
    twice = jnp.exp2(s * (2.0 / soft_cap))
    return (soft_cap * _LOG2_E) * (1.0 - 2.0 / (twice + 1.0))


def _visible(sight: Masks, first: Any, shape: tuple[int, int]) -> Any:
    """Returns the mask of visible keys, from key `first` on, for each query."""

    def keys(ref: Any) -> Any:
        values = _compat.load(ref.at[pl.ds(first, shape[1])], _COLUMN)
        return lax.broadcast_in_dim(values, shape, (1,))

    position = keys(sight.k_position)
    seen = (position >= _over(sight.q_low, shape)) & (position <= _over(sight.q_high, shape))
    if sight.q_segment is None:
        return seen
    return seen & (keys(sight.k_segment) == _over(sight.q_segment, shape))


def _over(row: Any, shape: tuple[int, ...]) -> Any:
    return lax.broadcast_in_dim(row, shape, (0,))


def _store(mine: _Shared, state: tuple[Any, Any, Any], sink: Any) -> None:
    """Writes the results to shared memory and commits them for the copies to global memory."""
    acc, total, largest = state
    mine.largest[...] = largest * (1.0 / _LOG2_E)
    if sink is not None:
        with_sink = jnp.maximum(largest, sink)
        rescale = jnp.exp2(largest - with_sink)
        total = total * rescale + jnp.exp2(sink - with_sink)
        acc, largest = acc * _over(rescale, acc.shape), with_sink
    nothing = total == 0.0
    inverse = jnp.where(nothing, 0.0, 1.0 / jnp.where(nothing, 1.0, total))
    mine.out[...] = (acc * _over(inverse, acc.shape)).astype(mine.out.dtype)
    # log(0) = -inf for rows without a visible key.
    mine.lse[...] = largest * (1.0 / _LOG2_E) + jnp.log(total)
    plgpu.commit_smem()
