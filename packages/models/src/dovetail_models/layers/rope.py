# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rotary position embedding: element i of a head pairs with i + head_dim / 2, or 2i with 2i + 1.

The angles depend only on the positions, the `Rope` and, for some scalings, the length of the
sequence. The decoder computes them once per call and passes them to every layer; inside a scan they
would be recomputed at each step.
"""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from dovetail_models.config.rope import (
    BY_LENGTH,
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Rope,
    YarnScaling,
)

Angles = tuple[Float[Array, "*batch t half"], Float[Array, "*batch t half"]]


def frequencies(rope: Rope, head_dim: int) -> Float[np.ndarray, " half"]:
    """Returns the radians per position of each pair, float32: `theta ** (-2 i / head_dim)`, scaled.

    Of the scalings that depend on the length of the sequence, those up to the original length.

    Source: RoFormer, 2104.09864, section 3.2.2.
    """
    inverse = np.float32(1) / np.float32(rope.theta) ** _exponents(head_dim)
    match rope.scaling:
        case None | DynamicScaling():
            return inverse
        case LongRopeScaling(short_factor=factors):
            return inverse / np.asarray(factors, np.float32)
        case LinearScaling(factor=factor):
            return inverse / np.float32(factor)
        case Llama3Scaling() as scaling:
            return _llama3(inverse, scaling)
        case YarnScaling() as scaling:
            return _yarn(inverse, scaling, theta=rope.theta)


def _exponents(head_dim: int) -> Float[np.ndarray, " half"]:
    # Powers in float32, as the published models were trained; float64 here differs by an ulp or so.
    return np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)


def _of_length(
    rope: Rope, head_dim: int, lengths: Int[Array, "*batch t"]
) -> Float[Array, "*batch t half"]:
    """Returns the frequencies of sequences of these lengths."""
    short, scaling = jnp.asarray(frequencies(rope, head_dim)), rope.scaling
    if isinstance(scaling, LongRopeScaling):
        long = dataclasses.replace(scaling, short_factor=scaling.long_factor)
        longer = jnp.asarray(frequencies(dataclasses.replace(rope, scaling=long), head_dim))
    else:
        assert isinstance(scaling, DynamicScaling)
        # In float32 and in this order, as transformers: the sums cancel.
        ratio = scaling.factor * lengths.astype(jnp.float32) / scaling.original_length
        growth = jnp.maximum(ratio - (scaling.factor - 1), 1.0)
        base = rope.theta * growth ** (head_dim / (head_dim - 2))
        longer = 1 / base[..., None] ** jnp.asarray(_exponents(head_dim))
    return jnp.where(lengths[..., None] > scaling.original_length, longer, short)


def _lengths(positions: Array, segment_ids: Array | None) -> Int[Array, "*batch t"]:
    """Returns the length of the sequence of each position: of its row, or of its segment."""
    if segment_ids is None:
        return jnp.max(positions, axis=-1, keepdims=True) + 1
    same = segment_ids[..., :, None] == segment_ids[..., None, :]
    return jnp.max(jnp.where(same, positions[..., None, :], 0), axis=-1) + 1


def _llama3(inverse: np.ndarray, scaling: Llama3Scaling) -> np.ndarray:
    # Rotations of each pair within the original context.
    rotations = scaling.original_length * inverse / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    keep = np.clip((rotations - low) / (high - low), 0, 1)
    return (inverse * (keep + (1 - keep) / scaling.factor)).astype(np.float32)


def _yarn(inverse: np.ndarray, scaling: YarnScaling, *, theta: float) -> np.ndarray:
    pairs = len(inverse)

    def pair(rotations: float) -> float:
        """Returns the fractional index of the pair with so many rotations."""
        span = scaling.original_length / (rotations * 2 * math.pi)
        return pairs * math.log(span) / math.log(theta)

    first, last = pair(scaling.beta_fast), pair(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    # The published models clip to the width of the head, not to the number of pairs.
    first, last = max(first, 0), min(last, 2 * pairs - 1)
    # A ramp of width 0 would divide by zero. One of negative width keeps all pairs or none.
    width = last - first if last != first else 1e-3
    slow = np.clip((np.arange(pairs) - first) / width, 0, 1)
    return (inverse * (slow / scaling.factor + 1 - slow)).astype(np.float32)


def rope_angles(
    rope: Rope,
    head_dim: int,
    *,
    positions: Int[Array, "*batch t"],
    segment_ids: Int[Array, "..."] | None = None,
) -> Angles:
    """Returns float32 cos and sin of position times frequency, each multiplied by the scaling's
    factor.

    Args:
        rope: Base, scaling.
        head_dim: Number of rotated elements of a head.
        positions: Positions [*batch, t].
        segment_ids: Segments [*batch, t] of packed rows. Where the frequencies depend on the length
            of a sequence, it is the largest position of the row, or of the segment, plus 1.
    """
    inverse = frequencies(rope, head_dim)
    if isinstance(rope.scaling, BY_LENGTH):
        inverse = _of_length(rope, head_dim, _lengths(positions, segment_ids))
    phase = positions[..., None].astype(jnp.float32) * inverse
    scaling = rope.scaling
    factor = scaling.turn_factor if isinstance(scaling, YarnScaling | LongRopeScaling) else 1.0
    cos, sin = jnp.cos(phase), jnp.sin(phase)
    return (cos, sin) if factor == 1.0 else (factor * cos, factor * sin)


def rotate(
    x: Float[Array, "b t n h"],
    angles: tuple[Float[Array, "#b t half"], Float[Array, "#b t half"]],
    *,
    interleaved: bool = False,
) -> Float[Array, "b t n h"]:
    """Rotates each pair of each head by its angle, in float32. Returns the dtype of x.

    Args:
        x: Queries or keys [b, t, n, h].
        angles: cos and sin [b or 1, t, h / 2].
        interleaved: Pair 2i with 2i + 1 instead of i with i + h / 2.
    """
    cos, sin = (values[:, :, None, :] for values in angles)
    wide = x.astype(jnp.float32)
    if interleaved:
        first, second = wide[..., 0::2], wide[..., 1::2]
    else:
        first, second = jnp.split(wide, 2, axis=-1)
    rotated = (first * cos - second * sin, second * cos + first * sin)
    if interleaved:
        return jnp.stack(rotated, axis=-1).reshape(x.shape).astype(x.dtype)
    return jnp.concatenate(rotated, axis=-1).astype(x.dtype)
