# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Grouped product as two batched products, for GPUs: no loop waits for the host.

Loops to bounds in `sizes`, as those of `tiles`, wait for the host at every turn: about 40 us on an
H200, where a product of 128 rows takes less. Here every shape is known. Rows are cut into blocks of
equal height:

    the first block of each expert       E blocks, multiplied by w as it is
    all further blocks of all experts    at most (M - 1) / height, multiplied by copies of matrices

The height is near the mean number of rows of an expert: both products then take about M rows. What
stands in a block behind its expert's last row has no reader. Only sums over rows (dw) need a mask.
Their further blocks are added one by one, in order, so that bits repeat: `scatter-add` adds in an
order that changes from run to run.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import sequential_vmap

from dovetail_kernels.costs_in_names import trips
from dovetail_kernels.dispatch import Implementation, Work
from dovetail_kernels.grouped.call import GroupedMatmulCall, GroupedMatmulInputs
from dovetail_kernels.grouped.tiles import differentiable, reverse
from dovetail_kernels.mesh import varying
from dovetail_kernels.precision import product
from dovetail_kernels.symbolic import has_symbolic_sizes

# The lowest block. Tensor cores take 8 columns or 16 rows at least.
_LOWEST = 16
# Largest copies of matrices.
_MOST_COPIED = 2**31


def _height(rows: int, count: int) -> int:
    """Returns the height of a block: at most the mean rows per expert, a power of 2."""
    height = _LOWEST
    while 2 * height * count <= rows:
        height *= 2
    return height


def _further(rows: int, count: int) -> int:
    """Returns the number of blocks beyond each expert's first for the worst sizes: one has all."""
    return max(rows - 1, 0) // _height(rows, count)


class _Blocks(NamedTuple):
    """Blocks of rows of one expert.

    Attributes:
        expert: The expert of each block.
        top: Its first row.
        end: The end of the rows that count.
    """

    expert: jax.Array
    top: jax.Array
    end: jax.Array

    def rows(self, height: int, total: int) -> jax.Array:
        """Returns the rows of each block, i32[blocks, height], within 0 to `total`."""
        rows = self.top[:, None] + jnp.arange(height, dtype=jnp.int32)[None]
        return jnp.clip(rows, 0, max(total - 1, 0))

    def own(self, height: int) -> jax.Array:
        """Tests which rows count, bool[blocks, height]."""
        return self.top[:, None] + jnp.arange(height, dtype=jnp.int32)[None] < self.end[:, None]


def _cut(sizes: jax.Array, rows: int) -> tuple[_Blocks, _Blocks, jax.Array]:
    """Returns first blocks, further blocks, and the number of an expert's first further block."""
    height, count = _height(rows, sizes.shape[0]), sizes.shape[0]
    ends = jnp.cumsum(sizes, dtype=jnp.int32)
    starts = ends - sizes
    each = jnp.maximum((sizes + (height - 1)) // height - 1, 0)
    last = jnp.cumsum(each, dtype=jnp.int32)
    block = jnp.arange(_further(rows, count), dtype=jnp.int32)
    expert = _owner(block, last)
    number = block - (last - each)[expert] + 1
    # Blocks beyond the last one are empty: their top is not below their end.
    top = jnp.where(block < last[-1], starts[expert] + number * height, rows)
    further = _Blocks(expert, top, ends[expert])
    return _Blocks(jnp.arange(count, dtype=jnp.int32), starts, ends), further, last - each


def _owner(numbers: jax.Array, bounds: jax.Array) -> jax.Array:
    """Returns the expert of each number, for the ends of the experts' numbers."""
    expert = jnp.sum(bounds[None, :] <= numbers[:, None], axis=1, dtype=jnp.int32)
    return jnp.minimum(expert, bounds.shape[0] - 1)


def _products(x: jax.Array, w: jax.Array, sizes: jax.Array, *, formula: str) -> jax.Array:
    """Multiplies each row of x by its expert's matrix. A row without an expert gives 0."""
    (total, _), height = x.shape, _height(x.shape[0], w.shape[0])
    first, further, offset = _cut(sizes, total)

    def multiply(blocks: _Blocks, matrices: jax.Array) -> jax.Array:
        out = product(formula, x[blocks.rows(height, total)], matrices, dtype=x.dtype)
        return out.astype(x.dtype).reshape(-1, out.shape[2])

    row = jnp.arange(total, dtype=jnp.int32)
    expert = _owner(row, first.end)
    within = row - first.top[expert]
    # Else XLA computes the places again for every column.
    place, rest_place, in_first, owned = lax.optimization_barrier(
        (
            expert * height + within,
            offset[expert] * height + within - height,
            (within < height)[:, None],
            (row < first.end[-1])[:, None],
        )
    )
    out = multiply(first, w).at[place].get(mode="clip")
    if further.top.shape[0]:
        rest = multiply(further, w[further.expert]).at[rest_place].get(mode="clip")
        out = jnp.where(in_first, out, rest)
    return jnp.where(owned, out, 0)


# Sequential under vmap, so that the copies of matrices stay bounded.
@sequential_vmap
def _rows(x: jax.Array, w: jax.Array, sizes: jax.Array) -> jax.Array:
    return _products(x, w, sizes, formula="bmd,bdf->bmf")


@sequential_vmap
def _gradients(
    x: jax.Array, w: jax.Array, sizes: jax.Array, g: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return _products(g, w, sizes, formula="bmf,bdf->bmd"), _matrices(x, g, sizes)


def _matrices(x: jax.Array, g: jax.Array, sizes: jax.Array) -> jax.Array:
    """Computes xᵀ g over the rows of each expert, [E, D, F]; 0 for an expert without rows."""
    total, height = x.shape[0], _height(x.shape[0], sizes.shape[0])
    first, further, _ = _cut(sizes, total)

    def sums(blocks: _Blocks) -> jax.Array:
        rows, own = blocks.rows(height, total), blocks.own(height)[..., None]
        # Both, since rows of no expert may hold NaN and NaN × 0 is NaN.
        left, right = (jnp.where(own, array[rows], 0) for array in (x, g))
        return product("bmd,bmf->bdf", left, right, dtype=x.dtype)

    def step(i: jax.Array, out: jax.Array) -> jax.Array:
        block = _Blocks(*(lax.dynamic_slice_in_dim(array, i, 1) for array in further))
        expert = block.expert[0]
        before = lax.dynamic_slice_in_dim(out, expert, 1)
        return lax.dynamic_update_slice_in_dim(out, before + sums(block), expert, 0)

    out = varying(sums(first), x)
    turns = further.top.shape[0]
    if turns:
        with trips(turns):
            out = lax.fori_loop(0, turns, step, out)
    return out.astype(x.dtype)


_multiply = differentiable(_rows, _gradients)


def _run(call: GroupedMatmulCall, inputs: GroupedMatmulInputs) -> jax.Array:
    return _multiply(*reverse(inputs))


def _copied(call: GroupedMatmulCall) -> int:
    """Returns the bytes of the matrices of further blocks."""
    blocks = _further(call.rows, call.count)
    return blocks * call.inner * call.outer * np.dtype(call.dtype).itemsize


def _refuse(call: GroupedMatmulCall) -> str | None:
    if call.device.platform != "gpu":
        return f"needs a GPU, got platform={call.device.platform!r}"
    if has_symbolic_sizes(call):
        return f"needs known shapes, got rows={call.rows}, count={call.count}"
    if call.rows < 1:
        return f"needs rows, got rows={call.rows}"
    if _copied(call) > _MOST_COPIED:
        return (
            f"copies matrices up to {_MOST_COPIED} bytes, got {_copied(call)} for "
            f"rows={call.rows}, count={call.count}, inner={call.inner}, outer={call.outer}"
        )
    return None


def _work(call: GroupedMatmulCall) -> Work:
    """Counts all blocks, the copies of their rows and matrices, and their results."""
    itemsize = np.dtype(call.dtype).itemsize
    blocks = call.count + _further(call.rows, call.count)
    rows = blocks * _height(call.rows, call.count)
    copies = rows * (call.inner + call.outer) * itemsize + _copied(call)
    return Work(
        flops=2 * rows * call.inner * call.outer,
        bytes=call.elements * itemsize + 2 * copies,
        peak_bytes=copies,
    )


BATCHED: Implementation[GroupedMatmulCall] = Implementation(
    name="batched", refuse=_refuse, work=_work, run=_run
)
