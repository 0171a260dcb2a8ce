# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What a model asks of tokens and positions: that each has a vector, and where documents begin."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Int


def check_rows(index: Array | np.ndarray, *, of: str, limit: str, rows: int, instead: str) -> None:
    """ValueError for a concrete number outside the table of `rows` vectors that it indexes.

    `of` says what is numbered, `limit` how the configuration calls `rows`, `instead` what to do.
    Under jit nothing is checked, and `Embed` gives NaN.
    """
    if isinstance(index, Tracer) or index.size == 0:
        return
    # Through NumPy: on a constant inside jit, a JAX reduction would be traced.
    concrete = np.asarray(index)
    low, high = int(concrete.min()), int(concrete.max())
    if low < 0 or high >= rows:
        raise ValueError(
            f"Every {of} must be in [0, {limit}), got {of}s from {low} to {high} with "
            f"{limit}={rows}. {instead}"
        )


def restart(segment_ids: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """Positions that count from 0 in each run of equal segment ids."""
    index = jnp.broadcast_to(jnp.arange(segment_ids.shape[1]), segment_ids.shape)
    starts = jnp.diff(segment_ids, axis=1, prepend=segment_ids[:, :1]) != 0
    return index - jax.lax.cummax(jnp.where(starts, index, 0), axis=1)
