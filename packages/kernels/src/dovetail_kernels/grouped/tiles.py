# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Grouped product in tiles of rows of one expert: work in proportion to the rows.

Rows lie expert by expert. Each expert's rows are cut into tiles of equal height, the last one
partly filled. A tile is one product with the expert's matrix. There are at most M / tile + E tiles,
and none for an expert without rows. The dense form takes M × E row products instead. The two loops,
over the experts with rows and over an expert's tiles, have bounds that depend on `sizes`. JAX
cannot differentiate such loops, so the gradients are written out here, over the same tiles:

    dx = g wᵀ, tile by tile        dw[e] = Σ over e's tiles of xᵀ g

A tile is read and written at full height. Below its expert's last row it computes with rows of the
next expert, whose own tiles come later and overwrite them. Padding therefore costs time but needs
no mask for the output. Sums over rows (dw) need a mask.

The expert's matrix is sliced out of `w` once per expert, not once per tile: XLA copies it.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import sequential_vmap

from dovetail_kernels.arrays import converts_whole
from dovetail_kernels.costs_in_names import trips
from dovetail_kernels.derivatives import INSTEAD, first_order, reverse_mode
from dovetail_kernels.dispatch import Implementation, Work
from dovetail_kernels.grouped.call import GroupedMatmulCall, GroupedMatmulInputs
from dovetail_kernels.mesh import varying
from dovetail_kernels.precision import product
from dovetail_kernels.symbolic import is_symbolic

CarryT = TypeVar("CarryT")

# Measured in float32 at 8 and 64 experts, 512 × 1024: taller tiles gain nothing in the product and
# lose by padding, lower ones than 8 gain nothing.
_LOWEST, _HIGHEST = 8, 128


def tile_rows(rows: Any, count: Any) -> int:
    """Returns the height of a tile: the mean rows per expert, rounded up to 8, 16, 32, 64 or 128.

    At most 128, also for a larger mean. 128 for a symbolic number (`jax.export`).
    """
    if is_symbolic(rows) or is_symbolic(count):
        return _HIGHEST
    height = _LOWEST
    while height < min(_HIGHEST, rows / count):
        height *= 2
    return height


def most_tiles(rows: int, count: int) -> int:
    """Returns the number of tiles for the worst sizes.

    There every possible expert starts one more tile with a single row.
    """
    return min(rows, count) + max(rows - count, 0) // tile_rows(rows, count)


once = functools.partial(first_order, "grouped_matmul", INSTEAD)
reverse = functools.partial(reverse_mode, "grouped_matmul")


def differentiable(rows: Callable[..., Any], gradients: Callable[..., Any]) -> Any:
    """Returns `rows(x, w, sizes)` with the gradients `gradients(x, w, sizes, g)` of x and w."""

    @jax.custom_vjp
    def multiply(x: jax.Array, w: jax.Array, sizes: jax.Array) -> jax.Array:
        return rows(x, w, sizes)

    def forward(*arrays: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        saved = once(arrays)
        return rows(*saved), saved

    def backward(saved: tuple[jax.Array, ...], g: jax.Array) -> tuple[Any, ...]:
        return *gradients(*once((*saved, g))), None

    multiply.defvjp(forward, backward)
    return multiply


@jax.jit  # for eager gradients, once
def _gradients(
    x: jax.Array, w: jax.Array, sizes: jax.Array, g: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return _rows_transposed(g, w, sizes), _matrices(x, g, sizes)


# Sequential under vmap: loops batched together would run each element to the longest bound.
@sequential_vmap
def _rows(x: jax.Array, w: jax.Array, sizes: jax.Array) -> jax.Array:
    return _products(x, w, sizes, contract=0)


@sequential_vmap
def _rows_transposed(g: jax.Array, w: jax.Array, sizes: jax.Array) -> jax.Array:
    return _products(g, w, sizes, contract=1)


def _products(x: jax.Array, w: jax.Array, sizes: jax.Array, *, contract: int) -> jax.Array:
    """Multiplies each row of x by its expert's matrix, over the matrix's axis `contract`.

    A row without an expert gives 0.
    """
    rows, tile = x.shape[0], tile_rows(x.shape[0], w.shape[0])
    padded = jnp.pad(x, ((0, tile), (0, 0)))

    def expert(out: jax.Array, e: jax.Array, start: jax.Array, end: jax.Array) -> jax.Array:
        matrix = lax.dynamic_index_in_dim(w, e, keepdims=False)

        def step(i: jax.Array, out: jax.Array) -> jax.Array:
            row = start + i * tile
            block = lax.dynamic_slice_in_dim(padded, row, tile)
            formula = "md,df->mf" if contract == 0 else "mf,df->md"
            result = product(formula, block, matrix, dtype=x.dtype).astype(x.dtype)
            return lax.dynamic_update_slice_in_dim(out, result, row, 0)

        with trips(rows, w.shape[0] * tile):  # all experts together have all rows
            return lax.fori_loop(0, _tile_count(start, end, tile), step, out)

    out = jnp.zeros((rows + tile, w.shape[2 - contract]), x.dtype)
    out = _over_experts(sizes, expert, varying(out, x))[:rows]
    # The last tile wrote results of rows without an expert below the last expert's last row.
    valid = jnp.arange(rows, dtype=jnp.int32) < jnp.sum(sizes, dtype=jnp.int32)
    return jnp.where(valid[:, None], out, 0)


@sequential_vmap
def _matrices(x: jax.Array, g: jax.Array, sizes: jax.Array) -> jax.Array:
    """Computes xᵀ g over the rows of each expert, [E, D, F]; 0 for an expert without rows."""
    (rows, inner), outer, count = x.shape, g.shape[1], sizes.shape[0]
    tile = tile_rows(rows, count)
    wide = np.promote_types(x.dtype, np.float32)
    x, g = (jnp.pad(array, ((0, tile), (0, 0))) for array in (x, g))

    def expert(out: jax.Array, e: jax.Array, start: jax.Array, end: jax.Array) -> jax.Array:
        def step(i: jax.Array, total: jax.Array) -> jax.Array:
            row = start + i * tile
            own = (row + jnp.arange(tile, dtype=jnp.int32) < end)[:, None]
            # Both, since rows of no expert may hold NaN and NaN × 0 is NaN.
            left = jnp.where(own, lax.dynamic_slice_in_dim(x, row, tile), 0)
            right = jnp.where(own, lax.dynamic_slice_in_dim(g, row, tile), 0)
            return total + product("md,mf->df", left, right, dtype=x.dtype)

        total = varying(jnp.zeros((inner, outer), wide), x)
        with trips(rows, count * tile):
            total = lax.fori_loop(0, _tile_count(start, end, tile), step, total)
        return lax.dynamic_update_index_in_dim(out, total.astype(x.dtype), e, 0)

    out = jnp.zeros((count, inner, outer), x.dtype)
    return _over_experts(sizes, expert, varying(out, x))


def _tile_count(start: jax.Array, end: jax.Array, tile: int) -> jax.Array:
    """Returns the number of tiles of an expert's rows.

    Loops count tiles. XLA before jax 0.12 leaves out a loop that counts rows, from 0 to 1 by more
    than 1, if it knows the bounds.
    """
    return (end - start + tile - 1) // tile


def _over_experts(
    sizes: jax.Array,
    body: Callable[[CarryT, jax.Array, jax.Array, jax.Array], CarryT],
    carry: CarryT,
) -> CarryT:
    """Runs `body(carry, expert, first row, end)` for each expert with rows, in order."""
    ends = jnp.cumsum(sizes, dtype=jnp.int32)
    order = jnp.argsort(sizes == 0, stable=True).astype(jnp.int32)

    def run(i: jax.Array, carry: CarryT) -> CarryT:
        e = order[i]
        return body(carry, e, ends[e] - sizes[e], ends[e])

    with trips(sizes.shape[0]):
        return lax.fori_loop(jnp.int32(0), jnp.sum(sizes > 0, dtype=jnp.int32), run, carry)


_multiply = differentiable(_rows, _gradients)


def _run(call: GroupedMatmulCall, inputs: GroupedMatmulInputs) -> jax.Array:
    return _multiply(*reverse(inputs))


def _work(call: GroupedMatmulCall) -> Work:
    tile, tiles = tile_rows(call.rows, call.count), most_tiles(call.rows, call.count)
    itemsize = np.dtype(call.dtype).itemsize
    matrices = min(call.rows, call.count) * call.inner * call.outer
    copies = (call.rows + tile) * (call.inner + call.outer) + matrices
    return Work(
        flops=2 * tiles * tile * call.inner * call.outer,
        bytes=(call.elements + 2 * copies) * itemsize,
        peak_bytes=_peak_bytes(call, tile),
    )


def _peak_bytes(call: GroupedMatmulCall, tile: int) -> int:
    """Counts the padded rows and results, one matrix, and the tiles of one step.

    XLA keeps the padded rows in the result's memory if they fit.
    """
    itemsize = np.dtype(call.dtype).itemsize
    wide = max(itemsize, 4)
    converted = converts_whole(call.dtype, call.device.platform)
    rows = (call.rows + tile) * call.inner * (wide if converted else itemsize)
    if rows <= call.rows * call.outer * itemsize:
        rows = 0
    matrices = call.matrices if converted else call.inner * call.outer
    tiles = tile * (call.inner + call.outer) + matrices
    return rows + (call.rows + tile) * call.outer * itemsize + tiles * wide


TILES: Implementation[GroupedMatmulCall] = Implementation(
    name="tiles", refuse=lambda call: None, work=_work, run=_run
)
