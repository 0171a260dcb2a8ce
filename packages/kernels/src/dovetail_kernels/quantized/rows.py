# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rows of activations as 8-bit integers, and the accumulation dtype of a product."""

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from dovetail_kernels.arrays import absmax

_TINY = float(np.finfo(np.float32).tiny)


def wide(dtype: DTypeLike) -> np.dtype:
    """Returns the accumulation dtype of products of rows: float32, or float64 for float64."""
    return np.promote_types(dtype, np.float32)


def accumulator(x: Array) -> Array:
    """Converts x to the accumulation dtype of its products."""
    return x.astype(wide(x.dtype))


def eight_bits(x: Array) -> tuple[Array, Array]:
    """Returns round(x / step) as int8[M, D], and step = max|x| / 127 [M, 1], for each row.

    A row with a step below the least normal float32 counts as zeros. A row with inf or nan has a
    step that is not finite, and so are its products.
    """
    x = accumulator(x)
    # The product that XLA would make of a division by 127 in some places and not in others.
    step = absmax(x, axis=1, keepdims=True) * (1 / 127)
    step = jnp.where(step < _TINY, 0, step)
    return jnp.round(x / jnp.where(step == 0, 1, step)).astype(jnp.int8), step


def rounded(x: Array, *, activations: str | None) -> tuple[Array, Array | None]:
    """Returns rows for a floating-point product and, for 8 bits, the steps for `restored`."""
    if activations is None:
        return accumulator(x), None
    q, step = eight_bits(x)
    return q.astype(step.dtype), step


def restored(y: Array, step: Array | None, dtype: np.dtype) -> Array:
    """Applies the steps of `rounded` to a result.

    Args:
        y: Product of the rounded rows [M, F].
        step: Steps [M, 1], or None.
        dtype: Dtype of the result.
    """
    return (y if step is None else y * step).astype(dtype)
