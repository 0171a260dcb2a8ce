# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rows of activations as 8-bit integers, and the dtype in which a product accumulates."""

import jax.numpy as jnp
import numpy as np
from jax import Array

_TINY = float(np.finfo(np.float32).tiny)


def accumulator(x: Array) -> Array:
    """x in the dtype in which its products accumulate: float32, or float64 for float64."""
    return x.astype(np.promote_types(x.dtype, np.float32))


def eight_bits(x: Array) -> tuple[Array, Array]:
    """(round(x / step) as int8[M, D], step = max|x| / 127 [M, 1]), for each row.

    A row whose step would be below the least normal float32 counts as zeros. One with inf or nan
    has such a step, so that what it is multiplied with is not finite either.
    """
    x = accumulator(x)
    # The product that XLA would make of a division by 127 in some places and not in others.
    step = jnp.max(jnp.abs(x), axis=1, keepdims=True) * (1 / 127)
    step = jnp.where(step < _TINY, 0, step)
    return jnp.round(x / jnp.where(step == 0, 1, step)).astype(jnp.int8), step


def rounded(x: Array, *, activations: str | None) -> tuple[Array, Array | None]:
    """Rows to multiply in floating point, and the steps that `restored` puts back if 8 bits."""
    if activations is None:
        return accumulator(x), None
    q, step = eight_bits(x)
    return q.astype(step.dtype), step


def restored(y: Array, step: Array | None, dtype: np.dtype) -> Array:
    """The result of `rounded` rows in `dtype`."""
    return (y if step is None else y * step).astype(dtype)
