# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Differences between two programs of one function that rounding explains.

Compilers order sums by the size of a batch, so results of floats are equal within a tolerance. But
rounding also decides ties: between two classes, two experts, two integers of a quantized
activation. Where floats differ by more than the tolerance, or integers at all, weights and inputs
are changed by a rounding error each. If that moves the results as far, rounding explains the
difference.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from dovetail_serve.bundle.golden import Comparison

Arrays = Mapping[str, np.ndarray]

# Changes by rounding errors, at most. A tie falls to the other side in half of them; they end with
# the first that explains the difference, so that more of them cost refused functions alone.
_NUDGES = 16
# As with the spread of equal runs, the largest of a few differences is not the largest of all.
_SPREAD = 2


def explained(
    compare: Callable[[Arrays], Mapping[str, Comparison]],
    results: Arrays,
    nudged: Callable[[int], Arrays] | None,
) -> dict[str, Comparison]:
    """Compares results, with a tolerance as wide as rounding errors move them.

    Args:
        compare: Compares outputs with those of another program for the same rows.
        results: The outputs by name.
        nudged: Returns outputs of the other program with weights and inputs nudged by a seed; None
            without anything to nudge.

    Returns:
        The comparison of each output.
    """
    outputs = {
        name: comparison if is_inexact(results[name]) else _exact(comparison)
        for name, comparison in compare(results).items()
    }
    for seed in range(_NUDGES if nudged else 0):
        left = [name for name, comparison in outputs.items() if not comparison.passed]
        if nudged is None or not left:
            break
        moved = compare(nudged(seed))
        for name in left:
            # An infinite difference is a result near overflow, which may be infinite or not.
            tolerance = max(outputs[name].tolerance, _SPREAD * moved[name].difference)
            if outputs[name].difference <= tolerance:
                outputs[name] = dataclasses.replace(outputs[name], tolerance=tolerance)
    return outputs


def nudged(
    arrays: Mapping[str, Any], rounding: str | None, *, seed: int, first: int = 0
) -> dict[str, jax.Array]:
    """Returns arrays with floats changed by a rounding error each.

    Args:
        arrays: Arrays by name. Their shardings are kept.
        rounding: Coarsest dtype of the arithmetic; None for one without floats, which moves none.
        seed: Seed of the signs of the changes, from 0.
        first: Number of the first array. Each number has signs of its own.
    """
    return {
        name: _moved(jax.numpy.asarray(array), rounding, seed, number)
        for number, (name, array) in enumerate(arrays.items(), start=first)
    }


def has_rounding(dtype: Any) -> bool:
    """Whether values of this dtype are nudged.

    Those of 8 bits or fewer are not: their neighbours are 3 % to 100 % away, which is no rounding
    error of the arithmetic after them.
    """
    return jax.numpy.issubdtype(dtype, np.inexact) and jax.numpy.finfo(dtype).bits >= 16


def is_inexact(array: Any) -> bool:
    """Whether an array is of floats or complex numbers."""
    return bool(jax.numpy.issubdtype(array.dtype, np.inexact))


def _exact(comparison: Comparison) -> Comparison:
    return dataclasses.replace(comparison, tolerance=0.0)


def _moved(value: jax.Array, rounding: str | None, seed: int, number: int) -> jax.Array:
    if rounding is None or not has_rounding(value.dtype):
        return value
    # A weight of a coarser dtype than the arithmetic moves by an epsilon of its own.
    step = max(_eps(rounding), _eps(value.dtype))
    with jax.debug_nans(False), jax.debug_infs(False):
        moved = _nudge(value, jax.numpy.uint32(seed), jax.numpy.uint32(number), step=step)
    return jax.device_put(moved, value.sharding)


@functools.partial(jax.jit, static_argnames="step")
def _nudge(value: jax.Array, seed: jax.Array, number: jax.Array, *, step: float) -> jax.Array:
    """Returns floats multiplied by 1 plus or minus `step`, in one pass without other arrays."""
    index = jax.numpy.zeros(value.shape, "uint32")
    for axis, size in enumerate(value.shape):
        index = index * np.uint32(size) + jax.lax.broadcasted_iota("uint32", value.shape, axis)
    up = _mixed(index ^ _mixed(number ^ _mixed(seed + np.uint32(1)))) >> 31 == 0
    # In float32, 1 plus an epsilon of float64 is 1.
    wide = value.dtype if jax.numpy.finfo(value.dtype).bits >= 32 else "float32"
    factor = jax.numpy.where(up, 1 + step, 1 - step).astype(wide)
    return (value.astype(wide) * factor).astype(value.dtype)


def _mixed(values: Any) -> jax.Array:
    """Returns a hash of uint32, the `lowbias32` of https://nullprogram.com/blog/2018/07/31/."""
    values = (values ^ (values >> 16)) * np.uint32(0x7FEB352D)
    values = (values ^ (values >> 15)) * np.uint32(0x846CA68B)
    return values ^ (values >> 16)


def _eps(dtype: Any) -> float:
    return float(jax.numpy.finfo(dtype).eps)
