# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rotary position embedding in the half-split layout: element i pairs with i + head_dim / 2.

Angles depend only on the positions and the `Rope`, so the decoder computes them once per call and
hands them to every layer; inside a scan they would be computed again at each step.
"""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from dovetail_models.config import Llama3Scaling, Rope

Angles = tuple[Float[Array, "*batch t half"], Float[Array, "*batch t half"]]


def frequencies(rope: Rope, head_dim: int) -> Float[np.ndarray, " half"]:
    """Radians per position of each pair, float32: `theta ** (-2 i / head_dim)`, then scaled.

    Source: RoFormer, 2104.09864, section 3.2.2.
    """
    # Powers in float32, as the published models were trained; float64 here differs by an ulp or so.
    exponent = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    inverse = np.float32(1) / np.float32(rope.theta) ** exponent
    return inverse if rope.scaling is None else _stretch(inverse, rope.scaling)


def _stretch(inverse: np.ndarray, scaling: Llama3Scaling) -> np.ndarray:
    turns = (
        scaling.original_length * inverse / (2 * math.pi)
    )  # of each pair in the original context
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    keep = np.clip((turns - low) / (high - low), 0, 1)
    return (inverse * (keep + (1 - keep) / scaling.factor)).astype(np.float32)


def angles(rope: Rope, head_dim: int, *, positions: Int[Array, "*batch t"]) -> Angles:
    """(cos, sin) float32 of position times frequency."""
    phase = positions[..., None].astype(jnp.float32) * frequencies(rope, head_dim)
    return jnp.cos(phase), jnp.sin(phase)


def rotate(
    x: Float[Array, "b t n h"], turn: tuple[Float[Array, "#b t half"], Float[Array, "#b t half"]]
) -> Float[Array, "b t n h"]:
    """`x` with each pair of each head turned by its angle; computed in float32, dtype of x out."""
    cos, sin = (part[:, :, None, :] for part in turn)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = (first * cos - second * sin, second * cos + first * sin)
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)
