# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Arguments: whether they are arrays, whether values are known, and axes cut into blocks."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer


def check_arrays(operation: str, **arrays: Any) -> None:
    """Raises TypeError for an argument without shape and dtype. None passes.

    Args:
        operation: Name of the operation, for the message.
        arrays: Arguments by name: arrays, tracers, `jax.ShapeDtypeStruct` or NNX variables.
    """
    for name, array in arrays.items():
        if array is not None and not (hasattr(array, "shape") and hasattr(array, "dtype")):
            raise TypeError(
                f"{operation} needs {name} as an array, got {name} of type "
                f"{type(array).__name__}. Use jnp.asarray({name})."
            )


def absmax(x: jax.Array, *, axis: int, keepdims: bool = False) -> jax.Array:
    """Returns max|x| along an axis; inf where x has NaN.

    `jnp.max` alone loses NaN: XLA's parallel reductions on CPUs skip it (4,096 numbers and more,
    jax 0.10.2 and 0.12).

    Args:
        x: The numbers.
        axis: The axis that is reduced.
        keepdims: Keep the axis, with size 1.
    """
    # x * 0 is 0, or NaN where x is not finite. Unlike a selection, XLA fuses it into the sum.
    finite = jnp.sum(x * 0, axis=axis, keepdims=keepdims) == 0
    return jnp.where(finite, jnp.max(jnp.abs(x), axis=axis, keepdims=keepdims), jnp.inf)


def is_known(array: Any) -> bool:
    """Tests whether this process holds the values: the array is neither traced nor abstract."""
    if isinstance(array, np.ndarray):
        return True
    concrete = isinstance(array, jax.Array) and not isinstance(array, Tracer)
    return concrete and array.is_fully_addressable


def known(array: Any) -> np.ndarray | None:
    """Returns the values, or None if `is_known` is False.

    Check them with NumPy: `jax.jit` may have captured the array, and `jnp` traces there.
    """
    return np.asarray(array) if is_known(array) else None


def converts_whole(dtype: Any, platform: str) -> bool:
    """Tests whether XLA converts whole arrays to float32 before a loop that multiplies slices.

    Until jax 0.12 it does so for numbers of 16 bits on a CPU.
    """
    return platform == "cpu" and np.dtype(dtype).itemsize < 4 and jax.__version_info__ < (0, 12)


class Cut(NamedTuple):
    """An axis in `blocks` blocks of `size`. The last block may contain padding."""

    size: int
    blocks: int


def cut(length: int, largest: int) -> Cut:
    """Divides `length` into blocks of at most `largest`, as even as multiples of 8 allow.

    A length of at most `largest` is one block of its own size.
    """
    if length <= largest:
        return Cut(length, 1)
    even = -(-length // -(-length // largest))
    size = min(largest, -(-even // 8) * 8)
    return Cut(size, -(-length // size))
