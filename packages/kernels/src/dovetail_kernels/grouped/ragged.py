# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Grouped product by `jax.lax.ragged_dot`: one pass on TPU, dense elsewhere.

On CPU and GPU XLA expands it to the product of every row with every expert's matrix, with the rows
of other experts set to 0. This costs E times the FLOPs, and E copies of the rows in memory (for GPU
see marin-community/marin#5394).
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import sequential_vmap

from dovetail_kernels.arrays import converts_whole
from dovetail_kernels.dispatch import Implementation, Work
from dovetail_kernels.grouped.call import GroupedMatmulCall, GroupedMatmulInputs
from dovetail_kernels.grouped.tiles import differentiable, reverse
from dovetail_kernels.precision import matmul_precision
from dovetail_kernels.symbolic import is_symbolic


def _product(x: jax.Array, w: jax.Array, sizes: jax.Array) -> jax.Array:
    # Rows of no expert may hold anything. XLA for CPU does not read them, but the documentation of
    # ragged_dot does not promise it.
    row = jnp.arange(x.shape[0], dtype=jnp.int32)[:, None]
    valid = row < jnp.sum(sizes, dtype=jnp.int32)
    out = jax.lax.ragged_dot(jnp.where(valid, x, 0), w, sizes, precision=matmul_precision(x.dtype))
    return jnp.where(valid, out, 0)


# Sequential under vmap: the operation has no rule for a batch of x that shares w.
_rows = sequential_vmap(_product)


@sequential_vmap
def _gradients(
    x: jax.Array, w: jax.Array, sizes: jax.Array, g: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return jax.vjp(lambda x, w: _product(x, w, sizes), x, w)[1](g)


_multiply = differentiable(_rows, _gradients)


def _run(call: GroupedMatmulCall, inputs: GroupedMatmulInputs) -> jax.Array:
    return _multiply(*reverse(inputs))


def _work(call: GroupedMatmulCall) -> Work:
    itemsize = np.dtype(call.dtype).itemsize
    flops, size = 2 * call.rows * call.inner * call.outer, call.elements * itemsize
    if call.device.platform == "tpu":
        rows = call.rows * (call.inner + call.outer)  # with zeros for rows of no expert
        return Work(flops=flops, bytes=size, peak_bytes=rows * itemsize)
    copies = call.count * call.rows * call.inner
    # Beside the copies the matrices, transposed.
    converted = converts_whole(call.dtype, call.device.platform)
    peak = (copies + call.matrices) * (4 if converted else itemsize)
    return Work(flops=call.count * flops, bytes=size + 2 * copies * itemsize, peak_bytes=peak)


def _refuse(call: GroupedMatmulCall) -> str | None:
    return f"needs a known number of groups, not {call.count}" if is_symbolic(call.count) else None


RAGGED_DOT: Implementation[GroupedMatmulCall] = Implementation(
    name="ragged_dot", refuse=_refuse, work=_work, run=_run
)
