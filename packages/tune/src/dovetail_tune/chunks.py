# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Functions of a few positions, or of a few rows, at a time. The backward pass recomputes each.

Chunks are strided: chunk i has every n-th position or group of rows, beginning at i. Devices that
share the rows or positions of a batch then each hold their part of every chunk.

Recomputing the rows of a chunk is the cached gradient of GradCache (2101.06983): all rows are
encoded without their activations, and the backward pass encodes one chunk again at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

# The axes of a mesh that split rows, and the one that splits positions, as dovetail_train has them.
_ROW_AXES = ("data", "fsdp", "expert")
_POSITION_AXIS = "context"


def row_shards() -> int:
    """Returns the number of parts into which the ambient mesh splits rows."""
    mesh = jax.sharding.get_abstract_mesh().shape
    return math.prod(mesh.get(axis, 1) for axis in _ROW_AXES)


def position_shards() -> int:
    """Returns the number of parts into which the ambient mesh splits positions."""
    return jax.sharding.get_abstract_mesh().shape.get(_POSITION_AXIS, 1)


def map_positions(function: Callable[..., Any], arrays: tuple[Array, ...], *, chunk: int) -> Any:
    """Returns `function(*arrays)`, computed for a chunk of positions at a time.

    Arrays of a single chunk are not computed twice.

    Args:
        function: Maps arrays [B, s, ...] to a pytree of arrays [B, s, ...], each position by
            itself.
        arrays: Arrays [B, S, ...].
        chunk: Largest number of positions of a chunk, over the rows of one device.
    """
    rows, length = arrays[0].shape[:2]
    each = max(1, chunk // math.ceil(rows / row_shards())) * position_shards()
    count = math.ceil(length / each)
    if count <= 1:
        return function(*arrays)
    size = math.ceil(length / count)
    full = length // size
    strided = [
        jnp.moveaxis(a[:, : full * size].reshape(rows, size, full, *a.shape[2:]), 2, 0)
        for a in arrays
    ]
    again = jax.checkpoint(function)
    results = jax.lax.map(lambda pieces: again(*pieces), tuple(strided))
    results = jax.tree.map(
        lambda y: jnp.moveaxis(y, 0, 2).reshape(rows, full * size, *y.shape[3:]), results
    )
    if full * size == length:
        return results
    rest = again(*(a[:, full * size :] for a in arrays))
    return jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1), results, rest)


def map_rows(function: Callable[[Any], Any], batch: Any, *, chunks: int, group: int = 1) -> Any:
    """Returns `function(batch)`, computed for one of `chunks` parts of the rows at a time.

    Args:
        function: Maps a pytree of arrays [b, ...] to a pytree of arrays [b / group, ...] or
            [b, ...], each group by itself.
        batch: A pytree of arrays [B, ...].
        chunks: Number of parts. With 1, `function(batch)` itself.
        group: Consecutive rows that stay together.

    Raises:
        ValueError: The groups do not divide among the chunks.
    """
    rows = jax.tree.leaves(batch)[0].shape[0]
    if chunks < 1 or rows % (chunks * group):
        raise ValueError(
            f"the rows of a batch must divide into chunks of whole groups of {group}, got "
            f"rows={rows}, chunks={chunks}; pass a divisor of {rows // group} as chunks"
        )
    if chunks == 1:
        return function(batch)

    def strided(x: Array | np.ndarray) -> Array:
        x = jnp.asarray(x).reshape(rows // (group * chunks), chunks, group, *x.shape[1:])
        return jnp.moveaxis(x, 1, 0).reshape(chunks, rows // chunks, *x.shape[3:])

    def joined(y: Array) -> Array:
        own = y.shape[1] * chunks * group // rows  # rows of the result in a group
        y = y.reshape(chunks, rows // (group * chunks), own, *y.shape[2:])
        return jnp.moveaxis(y, 0, 1).reshape(rows // group * own, *y.shape[3:])

    results = jax.lax.map(jax.checkpoint(function), jax.tree.map(strided, batch))
    return jax.tree.map(joined, results)
