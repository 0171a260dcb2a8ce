# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Operations on the rows of a batch of logits: on each shard, and one by one on a CPU.

A row that is read many times fits in a core's cache, but a batch does not. On a CPU such rows are
therefore processed one after the other. There a row draws the same token in any batch. On a GPU all
rows are processed together, with a fixed number of passes.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from dovetail_kernels import dispatch, mesh


def over_rows(
    operation: str,
    function: Callable[..., Any],
    arrays: Sequence[Any],
    axes: Sequence[str],
    *,
    out: Any,
) -> Any:
    """Runs `function(*arrays)` on each shard of the rows.

    Args:
        operation: Name for error messages.
        function: The operation on some of the rows.
        arrays: Its arguments, with rows as their first axis. They may be None.
        axes: One letter for each axis of each array, "b" for the rows.
        out: Letters of each result, in a pytree with the result's structure.
    """
    instead = "Use jax.sharding.reshard on the logits so that only rows are sharded."
    return mesh.per_shard(operation, function, arrays, axes, out=out, may="b", instead=instead)


def suited(f: Callable[..., Array], logits: Array) -> Callable[..., Array]:
    """Returns f for the device of the logits: over single rows on a CPU, `unrolled` on a GPU.

    Args:
        f: Jitted function of rows, with a static option `unrolled`.
        logits: Logits [B, V].
    """
    platform = dispatch.device(logits).platform
    if platform == "gpu":
        return _unrolled(f)
    # Of several devices each may hold other rows; a loop over them would gather all.
    if platform != "cpu" or jax.device_count("cpu") > 1:
        return f

    return functools.partial(_row_by_row, f)


@functools.cache  # JAX compiles anew for each new function
def _unrolled(f: Callable[..., Array]) -> Callable[..., Array]:
    return functools.partial(f, unrolled=True)


def largest(z: Array) -> Array:
    """Returns the largest logit of each row [B]; +inf for a row with NaN.

    `jnp.max` alone loses NaN: XLA's parallel reductions on CPUs skip it (4,096 numbers and more,
    jax 0.10.2).
    """
    return jnp.max(jnp.where(z == z, z, jnp.inf), axis=1)


@functools.partial(jax.jit, static_argnums=0, inline=True)
def _row_by_row(f: Callable[..., Array], *arrays: Array | None) -> Array:
    def run_row(row: tuple[Array | None, ...]) -> Array:
        return f(*(None if a is None else a[None] for a in row))[0]

    return lax.map(run_row, arrays)
