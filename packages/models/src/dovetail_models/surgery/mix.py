# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of merging, for one parameter of several models.

Everything is computed in float32 as a change to the first parameter or to the base, and rounded
once to its dtype. With sums of whole parameters, equal parameters would not reproduce themselves
bit for bit: 0.3 x + 0.7 x is not x.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

# Cosine of the angle, 1.8 degrees, below which the arc is a straight line to float32.
_PARALLEL = 0.9995


def linear(
    leaves: Sequence[Float[Array, "*shape"]], weights: Float[Array, " n"]
) -> Float[Array, "*shape"]:
    """Returns `Σ w_i x_i / Σ w_i`."""
    start, *rest = leaves
    shares = weights / weights.sum()
    changes = [_change(x, start) * w for x, w in zip(rest, shares[1:], strict=True)]
    return _moved(start, _sum(changes))


def slerp(
    leaves: Sequence[Float[Array, "*shape"]], weights: Float[Array, " 2"]
) -> Float[Array, "*shape"]:
    """Returns the point at t = w_1 / (w_0 + w_1) of the arc from the first to the second parameter.

    `sin((1-t) Ω)/sin Ω x_0 + sin(t Ω)/sin Ω x_1` (Shoemake 1985), with Ω the angle between the
    parameters as vectors. The arc is a straight line if Ω is nearly 0 or π, or a parameter is 0.
    """
    start, end = leaves
    t = weights[1] / weights.sum()
    a, b = (x.astype(jnp.float32) for x in leaves)
    norms = jnp.sqrt(jnp.sum(a * a)) * jnp.sqrt(jnp.sum(b * b))
    cosine = jnp.sum(a * b) / jnp.where(norms == 0, 1, norms)
    straight = (norms == 0) | (jnp.abs(cosine) > _PARALLEL)
    angle = jnp.arccos(jnp.where(straight, 0.0, cosine))
    sine = jnp.sin(angle)
    arc = (jnp.sin((1 - t) * angle) / sine - 1) * a + jnp.sin(t * angle) / sine * b
    return _moved(start, jnp.where(straight, t * _change(end, start), arc))


def task_arithmetic(
    leaves: Sequence[Float[Array, "*shape"]], weights: Float[Array, " n"], *, base: Array
) -> Float[Array, "*shape"]:
    """Returns `x_base + Σ w_i τ_i` with the task vectors τ_i = x_i - x_base (2212.04089).

    Args:
        leaves: x_i.
        weights: w_i.
        base: x_base.
    """
    changes = [w * _change(x, base) for x, w in zip(leaves, weights, strict=True)]
    return _moved(base, _sum(changes))


def ties(
    leaves: Sequence[Float[Array, "*shape"]],
    weights: Float[Array, " n"],
    *,
    base: Array,
    density: float | int,
) -> Float[Array, "*shape"]:
    """Merges by TIES (2306.01708, algorithm 1), per parameter.

    1. Trim: each τ_i keeps its `density` largest entries.
    2. Elect: the sign of an entry is that of `Σ w_i τ_i`.
    3. Average: the change is the mean, weighted by w, of the entries with that sign.

    Args:
        leaves: Parameters x_i; τ_i = x_i - base.
        weights: w_i.
        base: Parameter of the base.
        density: Share of entries to keep, in (0, 1].
    """
    changes = [_trimmed(_change(x, base), density) for x in leaves]
    total, mass = _elected(changes, weights)
    return _moved(base, total / jnp.where(mass == 0, 1, mass))


def dare(
    leaves: Sequence[Float[Array, "*shape"]],
    weights: Float[Array, " n"],
    *,
    base: Array,
    density: float | int,
    key: PRNGKeyArray,
    elect: bool,
) -> Float[Array, "*shape"]:
    """Merges by DARE (2311.03099): `base + Σ w_i τ_i` with random entries of τ_i dropped.

    Each entry is kept with probability `density` and divided by it.

    Args:
        leaves: Parameters x_i; τ_i = x_i - base.
        weights: w_i.
        base: Parameter of the base.
        density: Probability of keeping an entry, in (0, 1].
        key: Key of the random choice.
        elect: Sum only entries with the elected sign, as in `ties`.
    """
    keys = jax.random.split(key, len(leaves))
    changes = []
    for x, leaf_key in zip(leaves, keys, strict=True):
        kept = jax.random.bernoulli(leaf_key, density, x.shape)
        changes.append(jnp.where(kept, _change(x, base) / density, 0))
    if elect:
        return _moved(base, _elected(changes, weights)[0])
    weighted = [w * change for change, w in zip(changes, weights, strict=True)]
    return _moved(base, _sum(weighted))


def _change(x: Array, start: Array) -> Array:
    return x.astype(jnp.float32) - start.astype(jnp.float32)


def _sum(parts: Sequence[Array]) -> Array:
    return functools.reduce(jnp.add, parts)


def _moved(start: Array, change: Array) -> Array:
    # An entry that does not change keeps its bits: -0.0 + 0.0 is 0.0.
    moved = (start.astype(jnp.float32) + change).astype(start.dtype)
    return jnp.where(change == 0, start, moved)


def _trimmed(change: Array, density: float | int) -> Array:
    """Sets all but the `density` largest entries of `change` to 0; keeps at least one.

    The smallest entry to keep is searched bit by bit in 32 passes, since unsigned floats are
    ordered as their bits. A sort takes far longer, and its indices as much memory as the numbers.
    """
    kept = max(1, int(density * change.size))
    bits = jax.lax.bitcast_convert_type(jnp.abs(change).reshape(-1), jnp.uint32)

    def narrow(i: Array, bound: Array) -> Array:
        higher = bound | (jnp.uint32(1) << (31 - i).astype(jnp.uint32))
        return jnp.where(jnp.sum(bits >= higher) >= kept, higher, bound)

    bound = jax.lax.fori_loop(0, 32, narrow, jnp.uint32(0))
    # Many bfloat16 entries are equal: the first of those at the bound stay.
    above, equal = bits > bound, bits == bound
    mask = above | (equal & (jnp.cumsum(equal) <= kept - jnp.sum(above)))
    return jnp.where(mask.reshape(change.shape), change, 0)


def _elected(changes: Sequence[Array], weights: Array) -> tuple[Array, Array]:
    """Returns the sum of the weighted changes with the elected sign, and of their weights."""
    weighted = [w * change for change, w in zip(changes, weights, strict=True)]
    # A sum of 0 has the sign plus.
    sign = jnp.where(_sum(weighted) >= 0, 1.0, -1.0)
    total, mass = jnp.zeros_like(sign), jnp.zeros_like(sign)
    for change, w in zip(weighted, weights, strict=True):
        agrees = jnp.sign(change) == sign
        total += jnp.where(agrees, change, 0)
        mass += jnp.where(agrees, w, 0)
    return total, mass
