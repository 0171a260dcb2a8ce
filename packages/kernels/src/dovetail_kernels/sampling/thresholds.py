# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Temperature and filters of a batch of logits, by thresholds.

A filter keeps the tokens above a threshold. It therefore needs no sort of the vocabulary, only the
threshold. A bisection over the float32 numbers finds it: read as integers they have the same order.
It takes at most 32 sums over the row, each exact in its comparisons. A sort of 151,936 logits takes
about 15 times as long as all of them on a CPU.

On a GPU the host would wait for the device before each turn of a loop whose end depends on data.
There the search is unrolled: eight passes, each of which makes four halvings at once. A pass sums
the weights above all 15 numbers that the four can ask for, in three kernels (H200, jax 0.11.2).
"""

import functools
import operator
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array, lax

from dovetail_kernels.mesh import varying
from dovetail_kernels.sampling.options import is_valid
from dovetail_kernels.sampling.rows import largest

_SIGN = 31
_MAGNITUDE = 0x7FFFFFFF
BISECTION = 32  # halvings of all float32 numbers
AT_ONCE = 4  # halvings of a pass on a GPU. Five ask for 31 numbers: more arithmetic than traffic.


@functools.partial(jax.jit, static_argnames="unrolled")
def warp(
    logits: Array,
    temperature: Array,
    top_k: Array | None,
    top_p: Array | None,
    min_p: Array | None,
    *,
    unrolled: bool = False,
) -> Array:
    """Computes `warp_logits` of some rows, f32[B, V]. A row with an option out of range is NaN.

    Args:
        logits: Logits [B, V].
        temperature: f32[B].
        top_k: i32[B] or None.
        top_p: f32[B] or None.
        min_p: f32[B] or None.
        unrolled: Whether the searches have a fixed number of passes, for a GPU.
    """
    z = logits.astype(jnp.float32)
    top = largest(z)
    valid = jnp.isfinite(top) & is_valid("temperature", temperature)
    # Before the division, which could overflow: the largest is 0 at any temperature.
    scaled = (z - top[:, None]) / jnp.where(temperature == 0, 1, temperature)[:, None]
    floor = varying(jnp.full(top.shape, -jnp.inf, jnp.float32), top)
    if top_k is not None:
        valid &= is_valid("top_k", top_k)
        asked = jnp.where(top_k == 0, jnp.inf, top_k.astype(jnp.float32))
        floor = _threshold(z, floor, asked, jnp.ones((), jnp.int32), unrolled)
    if top_p is not None:
        valid &= is_valid("top_p", top_p)
        e = jnp.where(z > floor[:, None], jnp.exp(scaled), 0)
        asked = jnp.where(top_p == 1, jnp.inf, top_p * jnp.sum(e, axis=1))
        floor = _threshold(z, floor, asked, e, unrolled)
    keep = z > floor[:, None]
    if min_p is not None:
        valid &= is_valid("min_p", min_p)
        keep &= jnp.exp(scaled) >= min_p[:, None]
    first = jnp.arange(z.shape[1], dtype=jnp.int32)[None] == _first_largest(z)[:, None]
    keep = jnp.where(temperature[:, None] == 0, first, keep)
    return jnp.where(valid[:, None], jnp.where(keep, scaled, -jnp.inf), jnp.nan)


def _threshold(z: Array, floor: Array, asked: Array, weights: Array, unrolled: bool) -> Array:
    """Finds a threshold per row: the fewest tokens above it weigh at least `asked`.

    Equal tokens count together. If all tokens above `floor` weigh less than `asked`, as for inf,
    the threshold is `floor`. It is also `floor` for NaN: no weight compares to NaN, so the search
    would not end.

    Args:
        z: Logits [B, V].
        floor: Least threshold of each row [B].
        asked: Weight [B].
        weights: Weight of each token [B, V], or of all [].
        unrolled: As in `warp`.
    """
    low = _integer(floor)
    # Above `low` is enough, or it is the floor; above `high` is too little.
    high = jnp.where(asked < jnp.inf, _integer(jnp.max(z, axis=1)), low)
    halvings = AT_ONCE if unrolled else 1

    def is_open(bounds: tuple[Array, Array]) -> Array:
        return jnp.any(bounds[0] + 1 < bounds[1])

    def narrow(bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middles = _middles(low, high, halvings)
        if unrolled:  # XLA for a CPU computes each pass again in those after it: minutes to compile
            low, high, middles = lax.optimization_barrier((low, high, middles))
        # Denormal numbers may be compared as 0. That does no harm, as what is kept at last is found
        # by the same comparison with the same number.
        above = [jnp.where(z > _number(middle)[:, None], weights, 0) for middle in middles]
        sums = [x.astype(jnp.float32) for x in _sums(above)]
        while middles:
            half = len(middles) // 2
            middle, weight, still = middles[half], sums[half], low + 1 < high
            enough = still & (weight >= asked)
            # Where the weight is just what is asked both ends meet: no higher number would do.
            high = jnp.where(still & (weight <= asked), middle, high)
            low = jnp.where(enough, middle, low)
            middles, sums = (
                [jnp.where(enough, *x) for x in zip(xs[half + 1 :], xs[:half], strict=True)]
                for xs in (middles, sums)
            )
        return low, high

    if unrolled:
        for _ in range(BISECTION // AT_ONCE):
            low, high = narrow((low, high))
    else:
        low, _ = lax.while_loop(is_open, narrow, (low, high))
    return _number(low)


def _middles(low: Array, high: Array, halvings: int) -> list[Array]:
    """Returns all middles that some halvings of an interval can ask for, in ascending order."""
    if halvings == 0:
        return []
    middle = (low >> 1) + (high >> 1) + (low & high & 1)  # their sum would overflow
    below, above = (low, middle), (middle, high)
    return [*_middles(*below, halvings - 1), middle, *_middles(*above, halvings - 1)]


def _sums(arrays: list[Array]) -> Sequence[Array]:
    """Returns the sum of each row [B] of arrays [B, V], of all arrays in one pass."""
    if len(arrays) == 1:
        return [jnp.sum(arrays[0], axis=1, dtype=arrays[0].dtype)]
    zeros = [jnp.zeros((), x.dtype) for x in arrays]
    return lax.reduce(arrays, zeros, lambda xs, ys: list(map(operator.add, xs, ys)), (1,))


def _integer(number: Array) -> Array:
    """Maps float32 to int32 of the same order."""
    bits = lax.bitcast_convert_type(number, jnp.int32)
    return bits ^ ((bits >> _SIGN) & _MAGNITUDE)


def _number(integer: Array) -> Array:
    """Inverts `_integer`."""
    bits = integer ^ ((integer >> _SIGN) & _MAGNITUDE)
    return lax.bitcast_convert_type(bits, jnp.float32)


def _first_largest(z: Array) -> Array:
    """Returns `jnp.argmax(z, axis=1)` as i32[B].

    On a CPU `jnp.argmax` reduces pairs, one number at a time.
    """
    largest = z == jnp.max(z, axis=1, keepdims=True)
    columns = jnp.arange(z.shape[1], dtype=jnp.int32)[None]
    return jnp.min(jnp.where(largest, columns, z.shape[1] - 1), axis=1)
