# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The loop over tiles of a result that both kernels of grouped products share, on Hopper GPUs.

A thread block computes every `BLOCKS`-th tile of the result. A warpgroup copies operands into
shared memory (TMA), up to `_STAGES` steps ahead, also of the next tile. Two warpgroups multiply
(wgmma), each one half of the tile's 128 rows.

A private module: on JAX 0.10 its import needs absl-py, a dependency not declared by JAX.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from dovetail_kernels import _compat

# Register layout of a wgmma accumulator, and of vectors along its rows.
_TILE = plgpu.Layout.WGMMA
_ROW = _TILE.reduce(1)
# Warpgroups (128 threads) that multiply; one more copies.
_COMPUTE = 2
# Rows of a warpgroup: those of one wgmma instruction.
ROWS = 64
# Rows of a tile of the result.
HEIGHT = _COMPUTE * ROWS
# Terms of a step, and steps in shared memory at once: 192 KiB of 227 at the largest width, and 32
# for the result.
DEPTH = 64
_STAGES = 4
# Columns of a tile of the result. Its parts are written from two places in turn.
WIDTHS = 128, 256
_WRITTEN, _PLACES = 64, 2
# Thread blocks: the multiprocessors of an H100 SXM, an H200 or a GH200. Right with any number.
BLOCKS = 132
# TMA copies rows from a multiple of 8 on, the height of a tile in `_TRANSFORMS`.
ALIGNED = 8
# Registers of a thread. 65536 / 128 threads leaves 512 to three warpgroups. Copying needs few.
_REGISTERS_COMPUTE, _REGISTERS_COPY = 232, 40
# Layout for TMA to write and wgmma to read a tile without bank conflicts.
_TRANSFORMS = (plgpu.TilingTransform((ALIGNED, 64)), plgpu.SwizzleTransform(128))


class Tile(NamedTuple):
    """A tile of the result, in scalars.

    Attributes:
        copies: Returns the sources of the two halves of a, and of b, for a step.
        steps: Number of steps, at least 1, and as many as `masks`.
        out: Returns the destination of a warpgroup's rows [ROWS, F].
        column: First column of the tile.
        new: First column that no other tile writes. None if tiles do not overlap.
        masks: The first and the end of the rows that count, for steps 0 and 1; empty if all do.
    """

    copies: Callable[[Any], tuple[Any, Any, Any]]
    steps: Any
    out: Callable[[Any], Any]
    column: Any
    new: Any
    masks: tuple[tuple[Any, Any], ...]


class Shared(NamedTuple):
    """Shared memory and its barriers.

    Attributes:
        a: Operands of the steps in shared memory, in halves of 64 rows of the result.
        b: Operands that both halves share.
        staged: Parts of the result on their way to global memory.
        full: Barriers of the steps, for the arrival of their copies.
        free: Barriers of the steps, for the end of their products.
        masked: Barrier for both warpgroups after a mask.
    """

    a: Any
    b: Any
    staged: Any
    full: Any
    free: Any
    masked: Any


def tile_width(outer: int) -> int:
    """Returns the columns of a tile of a result with `outer` columns."""
    return max(width for width in WIDTHS if width <= outer)


def tile_columns(number: Any, width: int, outer: int) -> tuple[Any, Any]:
    """Returns the first column of a tile, and the first one that no other tile writes.

    Args:
        number: Number of the tile among those with the same rows.
        width: Columns of a tile.
        outer: Columns of the result.

    Returns:
        Both columns. If `width` does not divide the columns, the last two tiles overlap; else the
        second column is None.
    """
    if outer % width == 0:
        return number * width, None
    return jnp.minimum(number * width, outer - width), number * width


def run(
    body: Callable[..., None],
    arguments: tuple[jax.Array, ...],
    shape: jax.ShapeDtypeStruct,
    *,
    b: tuple[int, int],
    tiles: int,
    products: int,
) -> Any:
    """Runs a kernel.

    Args:
        body: The kernel.
        arguments: Its arrays.
        shape: Its result.
        b: Shape of the second operand of a step.
        tiles: Number of tiles of the result, at most.
        products: Number of products of numbers, for profiles and XLA's scheduler.
    """

    def tile(*shape_of_tile: int) -> Any:
        return plgpu.SMEM(shape_of_tile, shape.dtype, transforms=_TRANSFORMS)

    scratch = Shared(
        a=tile(_STAGES, _COMPUTE, ROWS, DEPTH),
        b=tile(_STAGES, *b),
        staged=tile(_COMPUTE, _PLACES, ROWS, _WRITTEN),
        full=plgpu.Barrier(num_barriers=_STAGES, num_arrivals=_COMPUTE + 1),
        free=plgpu.Barrier(num_barriers=_STAGES, num_arrivals=_COMPUTE),
        masked=plgpu.Barrier(num_arrivals=_COMPUTE),
    )
    every = (*arguments, shape)
    moved = sum(array.size * array.dtype.itemsize for array in every)
    return _compat.kernel(
        body,
        out_type=shape,
        scratch_types=scratch._asdict(),
        grid=(min(BLOCKS, tiles),),
        grid_names=("block",),
        num_threads=_COMPUTE + 1,
        thread_name="warpgroup",
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Lane),
        cost=pl.CostEstimate(flops=2 * products, transcendentals=0, bytes_accessed=moved),
    )(*arguments)


def multiply(
    shared: Shared,
    tile: Callable[[Any], Tile],
    total: Any,
    ids: Any,
    transposed: tuple[bool, bool],
) -> None:
    """Computes every tile of this thread block.

    Args:
        shared: Shared memory.
        tile: Returns the tile of a number.
        total: Number of tiles of all blocks.
        ids: 0, 1, ... in global memory, for masks. None if no tile has one.
        transposed: Whether a tile of a is [terms, rows], and one of b is [columns, terms].
    """
    warpgroup, block = lax.axis_index("warpgroup"), lax.axis_index("block")
    blocks = lax.axis_size("block")
    mine = jnp.maximum(lax.div(total - block + (blocks - 1), jnp.int32(blocks)), 0)

    @pl.when(warpgroup < _COMPUTE)
    def _compute() -> None:
        plgpu.set_max_registers(_REGISTERS_COMPUTE, action="increase")

        def step(i: Any, done: Any) -> Any:
            this = tile(block + i * blocks)
            acc = _product(shared, this, warpgroup, done, ids, transposed)
            _store(shared.staged.at[warpgroup], acc, this, this.out(warpgroup))
            return done + this.steps

        lax.fori_loop(0, mine, step, jnp.int32(0))
        plgpu.wait_smem_to_gmem(0)

    @pl.when(warpgroup == _COMPUTE)
    def _copy() -> None:
        plgpu.set_max_registers(_REGISTERS_COPY, action="decrease")

        def step(i: Any, done: Any) -> Any:
            this = tile(block + i * blocks)
            lax.fori_loop(0, this.steps, functools.partial(_copy_step, shared, this, done), None)
            return done + this.steps

        lax.fori_loop(0, mine, step, jnp.int32(0))


def _copy_step(shared: Shared, this: Tile, done: Any, step: Any, _: None) -> None:
    slot = lax.rem(done + step, jnp.int32(_STAGES))

    @pl.when(done + step >= _STAGES)
    def _() -> None:
        plgpu.barrier_wait(shared.free.at[slot])

    targets = shared.a.at[slot, 0], shared.a.at[slot, 1], shared.b.at[slot]
    for source, target in zip(this.copies(step), targets, strict=True):
        plgpu.copy_gmem_to_smem(source, target, shared.full.at[slot])


def _product(
    shared: Shared, this: Tile, warpgroup: Any, done: Any, ids: Any, transposed: tuple[bool, bool]
) -> Any:
    """Returns the rows of a warpgroup, [ROWS, width], in registers."""

    def add(acc: Any, slot: Any) -> None:
        a, b = shared.a.at[slot, warpgroup], shared.b.at[slot]
        plgpu.wgmma(
            acc,
            a.transpose((1, 0)) if transposed[0] else a,
            b.transpose((1, 0)) if transposed[1] else b,
        )

    def run(acc: Any) -> Any:
        def step(i: Any, previous: Any, bounds: tuple[Any, Any] | None = None) -> Any:
            slot = lax.rem(done + i, jnp.int32(_STAGES))
            plgpu.barrier_wait(shared.full.at[slot])
            if bounds is not None:
                _mask(shared, slot, warpgroup, ids, bounds)
            add(acc, slot)
            if previous is not None:
                # All but the newest product are done.
                plgpu.wgmma_wait(1)
                plgpu.barrier_arrive(shared.free.at[previous])
            return slot

        slot, first = None, this.masks or (None,)
        for i, bounds in enumerate(first):
            slot = step(jnp.int32(i), slot, bounds)
        last = lax.fori_loop(len(first), this.steps, step, slot)
        result = acc[...]
        plgpu.barrier_arrive(shared.free.at[last])
        return result

    width = shared.b.shape[1] if transposed[1] else shared.b.shape[2]
    return pl.run_scoped(run, plgpu.WGMMAAccumulatorRef((ROWS, width), jnp.float32))


def _mask(shared: Shared, slot: Any, warpgroup: Any, ids: Any, bounds: tuple[Any, Any]) -> None:
    """Sets rows outside `bounds` to 0. One warpgroup cleans a, the other b."""

    def clean(ref: Any) -> None:
        value = plgpu.layout_cast(ref[...], _TILE)
        row = lax.broadcast_in_dim(_compat.load(ids, _ROW), value.shape, (0,))
        own = (row >= bounds[0]) & (row < bounds[1])
        ref[...] = jnp.where(own, value, jnp.zeros((), value.dtype))

    @pl.when(warpgroup == 0)
    def _() -> None:
        for half in range(_COMPUTE):
            clean(shared.a.at[slot, half])

    @pl.when(warpgroup == 1)
    def _() -> None:
        clean(shared.b.at[slot])

    # The tensor cores read shared memory by another path than ordinary stores.
    plgpu.commit_smem()
    plgpu.barrier_arrive(shared.masked)
    plgpu.barrier_wait(shared.masked)


def _store(staged: Any, acc: Any, this: Tile, out: Any) -> None:
    """Writes the rows of a warpgroup, in parts, from two places in shared memory in turn."""

    def write(i: int) -> None:
        # The copy before the last one has read its memory.
        plgpu.wait_smem_to_gmem(_PLACES - 1, wait_read_only=True)
        place = staged.at[i % _PLACES]
        place[...] = acc[:, i * _WRITTEN : (i + 1) * _WRITTEN].astype(staged.dtype)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(place, out.at[:, pl.ds(this.column + i * _WRITTEN, _WRITTEN)])

    for i in range(acc.shape[1] // _WRITTEN):
        if this.new is None:
            write(i)
        else:
            # An even number of parts is left out, so that the turns go on.
            new = this.column + i * _WRITTEN >= this.new
            pl.when(new)(functools.partial(write, i))
