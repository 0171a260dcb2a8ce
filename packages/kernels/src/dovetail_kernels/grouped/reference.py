# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Grouped product by its formula: every row times every matrix, then the row's own product."""

import jax
import jax.numpy as jnp
import numpy as np

from dovetail_kernels.dispatch import Implementation, Work
from dovetail_kernels.grouped.call import GroupedMatmulCall, GroupedMatmulInputs
from dovetail_kernels.precision import product


def _multiply(x: jax.Array, w: jax.Array, sizes: jax.Array) -> jax.Array:
    ends = jnp.cumsum(sizes, dtype=jnp.int32)[None, :]
    row = jnp.arange(x.shape[0], dtype=jnp.int32)[:, None]
    own = (row >= ends - sizes[None, :]) & (row < ends)  # [M, E]
    # Rows of no expert may hold anything; even a zero cotangent times NaN would be NaN.
    x = jnp.where(row < ends[:, -1:], x, 0)
    every = product("md,edf->mef", x, w, dtype=x.dtype)
    return jnp.sum(jnp.where(own[:, :, None], every, 0), axis=1).astype(x.dtype)


def _run(call: GroupedMatmulCall, inputs: GroupedMatmulInputs) -> jax.Array:
    return _multiply(*inputs)


def _work(call: GroupedMatmulCall) -> Work:
    products = call.rows * call.count * call.outer
    itemsize = np.dtype(call.dtype).itemsize
    return Work(
        flops=2 * products * call.inner,
        bytes=call.elements * itemsize + 2 * products * max(itemsize, 4),
        # The products twice, masked the second time, or beside the matrices transposed.
        peak_bytes=max(itemsize, 4) * (products + max(products, call.matrices)),
    )


REFERENCE: Implementation[GroupedMatmulCall] = Implementation(
    name="reference", refuse=lambda call: None, work=_work, run=_run
)
