# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Grouped product by our own kernels on Hopper GPUs, forward and backward.

The kernels take tiles of 128 rows of one expert. They begin where `sizes` says, so their list is
computed first, on the device: no loop waits for the host.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import sequential_vmap

from dovetail_kernels.dispatch import Implementation, Work, refuse_beside_hopper
from dovetail_kernels.grouped import batched
from dovetail_kernels.grouped.call import GroupedMatmulCall, GroupedMatmulInputs
from dovetail_kernels.grouped.tiles import differentiable, reverse
from dovetail_kernels.symbolic import has_symbolic_sizes

# Rows of a tile, as the kernel has them; it takes multiples of 128 columns too.
_HEIGHT = 128
# TMA copies rows from a multiple of 8 on.
_ALIGNED = 8
# Tiles of one expert that are multiplied by the same columns at a time: with 4096 columns their
# rows take 16 of 50 MB of cache.
_PANEL = 16


def most_tiles(rows: int, count: int) -> int:
    """Returns the number of tiles for the worst sizes.

    A tile begins up to 7 rows above its group: n groups have at most n + (rows + 6 n) / 128 tiles.
    """
    groups = min(rows, count)
    return groups + (rows + (_ALIGNED - 2) * groups) // _HEIGHT


def _groups(sizes: jax.Array, rows: int) -> tuple[jax.Array, jax.Array]:
    """Returns the first row and the end of each group; no rows for sizes that do not fit.

    `grouped_matmul` makes their result NaN. The kernel must not read beyond the arrays.
    """
    ends = jnp.cumsum(sizes, dtype=jnp.int32)
    # A sum that leaves int32 is negative first.
    fits = jnp.all((sizes >= 0) & (ends >= 0) & (ends <= rows))
    return jnp.where(fits, ends - sizes, 0), jnp.where(fits, ends, 0)


def _tiles(sizes: jax.Array, rows: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the list of tiles for the kernel.

    Args:
        sizes: Rows per group, i32[E].
        rows: Rows in the kernel, M and more, at least 128.

    Returns:
        The tiles i32[T, 4], as `_mosaic_kernel.rows` reads them, their number i32[1], and for each
        row its place in the kernel's result i32[rows], beyond its end for rows of no group.
    """
    starts, ends = _groups(sizes, rows)
    most = most_tiles(rows, sizes.shape[0])
    begins = starts // _ALIGNED * _ALIGNED
    each = jnp.where(ends > starts, (ends - begins + (_HEIGHT - 1)) // _HEIGHT, 0)
    last = jnp.cumsum(each, dtype=jnp.int32)
    first = last - each

    def owner(numbers: jax.Array, bounds: jax.Array) -> jax.Array:
        group = jnp.sum(bounds[None, :] <= numbers[:, None], axis=1, dtype=jnp.int32)
        return jnp.minimum(group, sizes.shape[0] - 1)

    def top(group: jax.Array, number: jax.Array) -> jax.Array:
        # A whole tile of rows is read, so the last one begins 128 rows above the end of x at most.
        return jnp.minimum(begins[group] + number * _HEIGHT, rows - _HEIGHT)

    tile = jnp.arange(most, dtype=jnp.int32)
    group = owner(tile, last)
    number = tile - first[group]
    panel = number // _PANEL * _PANEL
    size = jnp.clip(each[group] - panel, 1, _PANEL)
    tiles = jnp.stack([group, top(group, number), first[group] + panel, size], axis=1)

    row = jnp.arange(rows, dtype=jnp.int32)
    group = owner(row, ends)
    number = (row - begins[group]) // _HEIGHT
    place = (first[group] + number) * _HEIGHT + row - top(group, number)
    place = jnp.where(row < ends[-1], place, most * _HEIGHT)
    # Else XLA computes it again for every column.
    return tiles, last[-1:], lax.optimization_barrier(place)


def _padded(rows: int) -> int:
    """Returns the rows of x in the kernel: at least a tile, and a multiple of `_ALIGNED`."""
    return max(rows + -rows % _ALIGNED, _HEIGHT)


def _pad(x: jax.Array) -> jax.Array:
    return jnp.pad(x, ((0, _padded(x.shape[0]) - x.shape[0]), (0, 0)))


def _products(x: jax.Array, w: jax.Array, sizes: jax.Array, *, transposed: bool) -> jax.Array:
    # Not at import: Pallas takes longer to import than the rest of the package.
    from dovetail_kernels.grouped import _mosaic_kernel

    tiles, total, place = _tiles(sizes, _padded(x.shape[0]))
    products = _mosaic_kernel.rows(_pad(x), w, tiles, total, transposed=transposed)
    return products.at[place[: x.shape[0]]].get(mode="fill", fill_value=0)


# Sequential under vmap: the kernels read their arrays by number.
@sequential_vmap
def _rows(x: jax.Array, w: jax.Array, sizes: jax.Array) -> jax.Array:
    return _products(x, w, sizes, transposed=False)


@sequential_vmap
def _gradients(
    x: jax.Array, w: jax.Array, sizes: jax.Array, g: jax.Array
) -> tuple[jax.Array, jax.Array]:
    from dovetail_kernels.grouped import _mosaic_kernel

    dx = _products(g, w, sizes, transposed=True)
    return dx, _mosaic_kernel.matrices(_pad(x), _pad(g), *_groups(sizes, x.shape[0]))


_multiply = differentiable(_rows, _gradients)


def _run(call: GroupedMatmulCall, inputs: GroupedMatmulInputs) -> jax.Array:
    if _refuse(call) is not None:  # the shard of an array that the kernel takes
        return batched.BATCHED.run(call, inputs)
    return _multiply(*reverse(inputs))


def _refuse(call: GroupedMatmulCall) -> str | None:
    device = refuse_beside_hopper(call.device)
    if device is not None:
        return device
    if call.dtype not in ("bfloat16", "float16"):
        return f"takes bfloat16 and float16, got dtype={call.dtype}"
    if has_symbolic_sizes(call):
        return f"needs known shapes, got rows={call.rows}, count={call.count}"
    if call.rows < 1:
        return f"needs rows, got rows={call.rows}"
    if call.inner % 128 or call.outer % 128 or not call.inner or not call.outer:
        return f"takes multiples of 128 columns, got inner={call.inner}, outer={call.outer}"
    return None


def _work(call: GroupedMatmulCall) -> Work:
    """Counts the tiles of the worst sizes, written once and read once more than the result."""
    padded, itemsize = _padded(call.rows), np.dtype(call.dtype).itemsize
    rows = most_tiles(padded, call.count) * _HEIGHT
    copies = rows * call.outer * itemsize
    if padded > call.rows:
        copies += padded * call.inner * itemsize
    return Work(
        flops=2 * rows * call.inner * call.outer,
        bytes=call.elements * itemsize + 2 * copies,
        peak_bytes=copies,
    )


MOSAIC: Implementation[GroupedMatmulCall] = Implementation(
    name="mosaic", refuse=_refuse, work=_work, run=_run
)
