# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Grouped products as kernels for Hopper GPUs, in Pallas's Mosaic GPU.

`rows` multiplies tiles of rows by their group's matrix, `matrices` sums xᵀ g over each group.

Tiles of rows hold the rows of their group, and some of other groups, whose products nobody reads.
So `rows` writes whole tiles, and the caller gathers the rows of the result. A sum over rows must
not have them: `matrices` sets them to 0 in the first and the last block of a group, in both
operands (NaN times 0 is NaN).
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from dovetail_kernels.grouped._mosaic_tiles import (
    ALIGNED,
    DEPTH,
    HEIGHT,
    ROWS,
    Shared,
    Tile,
    multiply,
    run,
    tile_columns,
    tile_width,
)


def rows(
    x: jax.Array,
    w: jax.Array,
    tiles: jax.Array,
    total: jax.Array,
    *,
    transposed: bool,
) -> jax.Array:
    """Multiplies each tile of rows by a matrix.

    Args:
        x: Rows [M, D], bfloat16 or float16. M is at least `HEIGHT`, a multiple of
            `ALIGNED`; D a multiple of `DEPTH`.
        w: Matrices [E, D, F], or [E, F, D] if `transposed`. F is a multiple of 128.
        tiles: i32[T, 4]: the matrix of each tile; its first row, a multiple of `ALIGNED` up to
            M - HEIGHT; the number of the first tile of its panel, and the tiles of the panel.
            Tiles of a panel have one matrix.
        total: i32[1]: number of tiles.
        transposed: Multiply by the transposed matrices.

    Returns:
        The products of the rows of each tile [T * HEIGHT, F]. Tiles beyond the total are not
        written.
    """
    depth, outer = x.shape[1], w.shape[1 if transposed else 2]
    width = tile_width(outer)
    most = tiles.shape[0] * -(-outer // width)
    result = jax.ShapeDtypeStruct((tiles.shape[0] * HEIGHT, outer), x.dtype)

    def grouped_rows(*refs: Any, **scratch: Any) -> None:
        _rows(*refs, **scratch, transposed=transposed)

    return run(
        grouped_rows,
        (x, w, tiles, total),
        result,
        b=(width, DEPTH) if transposed else (DEPTH, width),
        tiles=most,
        products=result.size * depth,
    )


def _rows(
    x: Any, w: Any, tiles: Any, total: Any, out: Any, *, transposed: bool, **scratch: Any
) -> None:
    outer = out.shape[1]
    width = tile_width(outer)
    columns = -(-outer // width)

    def tile(number: Any) -> Tile:
        # Neighbours share columns of the matrix, then rows: both stay in the cache.
        panel = lax.div(number, jnp.int32(columns))
        first, size = tiles[panel, 2], tiles[panel, 3]
        within = number - first * columns
        t = first + lax.rem(within, size)
        column, new = tile_columns(lax.div(within, size), width, outer)
        row, matrix = tiles[t, 1], w.at[tiles[t, 0]]
        place = pl.ds(column, width)

        def copies(step: Any) -> tuple[Any, Any, Any]:
            depth = pl.ds(step * DEPTH, DEPTH)
            return (
                x.at[pl.ds(row, ROWS), depth],
                x.at[pl.ds(row + ROWS, ROWS), depth],
                matrix.at[place, depth] if transposed else matrix.at[depth, place],
            )

        return Tile(
            copies=copies,
            steps=jnp.int32(x.shape[1] // DEPTH),
            out=lambda wg: out.at[pl.ds(t * HEIGHT + wg * ROWS, ROWS)],
            column=column,
            new=new,
            masks=(),
        )

    multiply(Shared(**scratch), tile, total[0] * columns, None, (False, transposed))


def matrices(x: jax.Array, g: jax.Array, starts: jax.Array, ends: jax.Array) -> jax.Array:
    """Computes xᵀ g over the rows of each group, [E, D, F]; 0 for an empty group.

    Args:
        x: Rows [M, D], bfloat16 or float16. M is at least `DEPTH`, a multiple of
            `ALIGNED`; D a multiple of `HEIGHT`.
        g: Rows [M, F]. F is a multiple of 128.
        starts: First row of each group, i32[E], in 0 to M.
        ends: End of each group, i32[E].
    """
    (count,), total, inner, outer = starts.shape, x.shape[0], x.shape[1], g.shape[1]
    width = tile_width(outer)

    def grouped_matrices(*refs: Any, **scratch: Any) -> None:
        _matrices(*refs, **scratch)

    return run(
        grouped_matrices,
        (x, g, starts, ends, lax.iota(jnp.int32, DEPTH)),
        jax.ShapeDtypeStruct((count, inner, outer), x.dtype),
        b=(DEPTH, width),
        tiles=count * -(-outer // width) * (inner // HEIGHT),
        products=total * inner * outer,
    )


def _matrices(x: Any, g: Any, starts: Any, ends: Any, ids: Any, out: Any, **scratch: Any) -> None:
    count, inner, outer = out.shape
    width = tile_width(outer)
    across, down = -(-outer // width), inner // HEIGHT

    def tile(number: Any) -> Tile:
        e = lax.div(number, jnp.int32(across * down))
        within = lax.rem(number, jnp.int32(across * down))
        row = lax.rem(within, jnp.int32(down)) * HEIGHT
        column, new = tile_columns(lax.div(within, jnp.int32(down)), width, outer)
        start, stop = starts[e], ends[e]
        # Blocks of rows from a row on that TMA takes. The last block comes first, then the first,
        # since both are masked; they may be the same one.
        begin = lax.div(start, jnp.int32(ALIGNED)) * ALIGNED
        blocks = jnp.maximum(lax.div(stop - begin + (DEPTH - 1), jnp.int32(DEPTH)), 1)
        last = begin + (blocks - 1) * DEPTH
        held = jnp.minimum(last, x.shape[0] - DEPTH)
        first = jnp.minimum(begin, x.shape[0] - DEPTH)

        def copies(step: Any) -> tuple[Any, Any, Any]:
            inner_block = begin + (step - 1) * DEPTH
            top = jnp.where(step == 0, held, jnp.where(step == 1, first, inner_block))
            terms = pl.ds(top, DEPTH)
            return (
                x.at[terms, pl.ds(row, ROWS)],
                x.at[terms, pl.ds(row + ROWS, ROWS)],
                g.at[terms, pl.ds(column, width)],
            )

        return Tile(
            copies=copies,
            steps=jnp.maximum(blocks, 2),
            out=lambda wg: out.at[e, pl.ds(row + wg * ROWS, ROWS)],
            column=column,
            new=new,
            masks=((jnp.maximum(start, last) - held, stop - held), (start - first, last - first)),
        )

    multiply(Shared(**scratch), tile, jnp.int32(count * across * down), ids, (True, False))
