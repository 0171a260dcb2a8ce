# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Temperature and filters of a batch of logits, by thresholds.

A filter keeps the tokens above a threshold. It therefore needs no sort of the vocabulary, only the
threshold. A bisection over the float32 numbers finds it: read as integers they have the same order.
It takes at most 32 sums over the row, each exact in its comparisons. A sort of 151,936 logits takes
about 15 times as long as all of them on a CPU.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax

from dovetail_kernels.sampling.options import is_valid
from dovetail_kernels.sampling.rows import largest
from dovetail_kernels.varying import varying

_SIGN = 31
_MAGNITUDE = 0x7FFFFFFF


@jax.jit
def warp(
    logits: Array,
    temperature: Array,
    top_k: Array | None,
    top_p: Array | None,
    min_p: Array | None,
) -> Array:
    """Computes `warp_logits` of some rows, f32[B, V]. A row with an option out of range is NaN.

    Args:
        logits: Logits [B, V].
        temperature: f32[B].
        top_k: i32[B] or None.
        top_p: f32[B] or None.
        min_p: f32[B] or None.
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
        floor = _threshold(z, floor, asked, lambda above: jnp.sum(above, 1, dtype=jnp.int32))
    if top_p is not None:
        valid &= is_valid("top_p", top_p)
        e = jnp.where(z > floor[:, None], jnp.exp(scaled), 0)
        asked = jnp.where(top_p == 1, jnp.inf, top_p * jnp.sum(e, axis=1))
        floor = _threshold(z, floor, asked, lambda above: jnp.sum(jnp.where(above, e, 0), 1))
    keep = z > floor[:, None]
    if min_p is not None:
        valid &= is_valid("min_p", min_p)
        keep &= jnp.exp(scaled) >= min_p[:, None]
    first = jnp.arange(z.shape[1], dtype=jnp.int32)[None] == _first_largest(z)[:, None]
    keep = jnp.where(temperature[:, None] == 0, first, keep)
    return jnp.where(valid[:, None], jnp.where(keep, scaled, -jnp.inf), jnp.nan)


def _threshold(z: Array, floor: Array, asked: Array, weigh: Callable[[Array], Array]) -> Array:
    """Finds a threshold per row: the fewest tokens above it weigh at least `asked`.

    Equal tokens count together. `weigh` maps a mask [B, V] of the tokens above to their weight [B].
    If all tokens above `floor` weigh less than `asked`, as for inf, the threshold is `floor`. It is
    also `floor` for NaN: no weight compares to NaN, so the search would not end.
    """
    low = _integer(floor)
    # Above `low` is enough, or it is the floor; above `high` is too little.
    high = jnp.where(asked < jnp.inf, _integer(jnp.max(z, axis=1)), low)

    def is_open(bounds: tuple[Array, Array]) -> Array:
        return jnp.any(bounds[0] + 1 < bounds[1])

    def halve(bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = (low >> 1) + (high >> 1) + (low & high & 1)  # their sum would overflow
        # Denormal numbers may be compared as 0. That does no harm, as what is kept at last is found
        # by the same comparison with the same number.
        weight = weigh(z > _number(middle)[:, None]).astype(jnp.float32)
        still = low + 1 < high
        # Where the weight is just what is asked both ends meet: no higher number would do.
        high = jnp.where(still & (weight <= asked), middle, high)
        return jnp.where(still & (weight >= asked), middle, low), high

    low, _ = lax.while_loop(is_open, halve, (low, high))
    return _number(low)


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
