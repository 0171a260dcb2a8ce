# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rotary position embedding.

Plain jnp, which XLA fuses. With gradients, pairs of neighbours (`interleaved`) take a quarter to a
half longer than halves: benchmarks/elementwise.py. Permuting the projection's columns once makes an
interleaved head one of halves.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer


def rope(
    x: Float[Array, "*batch T N H"],
    positions: Integer[Array | np.ndarray, "*#batch T"],
    *,
    theta: float | None = None,
    dims: int | None = None,
    frequencies: Float[Array | np.ndarray, " half"] | None = None,
    interleaved: bool = False,
    factor: float = 1.0,
) -> Float[Array, "*batch T N H"]:
    """x with pair i of each head turned by `positions * frequencies[i]` (2104.09864, eq. 15).

        first, second = first cos - second sin, second cos + first sin

    The frequencies, radians per position, are `theta ** (-2 i / dims)`, or are given, for a scaled
    context. The first `dims` elements of a head turn (default all), twice as many as frequencies;
    the others pass. Element i pairs with i + dims / 2 (Llama, NeoX), or interleaved 2 i with
    2 i + 1 (GPT-J, DeepSeek, GLM). factor: multiplies the turned elements (YaRN, 2309.00071,
    section 3.4, for both of q and k).

    positions: [T], or with x's batch axes, each of its size or 1. Computed in float32 or wider, the
    dtype of x out; in float32 positions above 2**24 are rounded.

    Raises:
        ValueError: both or neither of theta and frequencies; `dims` odd or above H; positions that
            do not fit x.

    Example:

        import jax, jax.numpy as jnp
        from dovetail_kernels import rope
        q = jax.random.normal(jax.random.key(0), (1, 5, 8, 64))
        print(rope(q, jnp.arange(5), theta=10_000.0).shape)
    """
    dtype = np.promote_types(x.dtype, np.float32)
    frequencies = _frequencies(x, theta, dims, frequencies, dtype)
    _check_positions(x, positions)
    turned = 2 * frequencies.shape[0]
    position = jnp.asarray(positions)
    position = position.reshape((1,) * (x.ndim - 2 - position.ndim) + (*position.shape, 1, 1))
    phase = position.astype(dtype) * frequencies.reshape((1,) * (x.ndim - 1) + (-1,))
    cos, sin = jnp.cos(phase), jnp.sin(phase)  # [..., T, 1, half]
    if factor != 1.0:
        cos, sin = factor * cos, factor * sin
    part = _turn(x[..., :turned].astype(dtype), cos, sin, interleaved=interleaved).astype(x.dtype)
    return part if turned == x.shape[-1] else jnp.concatenate([part, x[..., turned:]], axis=-1)


def _turn(part: jax.Array, cos: jax.Array, sin: jax.Array, *, interleaved: bool) -> jax.Array:
    if interleaved:
        first, second = part[..., 0::2], part[..., 1::2]
    else:
        first, second = jnp.split(part, 2, axis=-1)
    pair = (first * cos - second * sin, second * cos + first * sin)
    if interleaved:
        return jnp.stack(pair, axis=-1).reshape(part.shape)
    return jnp.concatenate(pair, axis=-1)


def _frequencies(
    x: jax.Array, theta: float | None, dims: int | None, frequencies: Any, dtype: np.dtype
) -> jax.Array:
    head = x.shape[-1]
    if (theta is None) == (frequencies is None) or (dims is not None and theta is None):
        given = None if frequencies is None else list(frequencies.shape)
        raise ValueError(
            "rope needs theta, with dims or without, or else frequencies alone, got theta="
            f"{theta}, dims={dims}, frequencies of shape {given}. Give one of the two."
        )
    if frequencies is not None:
        dims = 2 * frequencies.shape[0]
    dims = head if dims is None else dims
    if dims % 2 or not 2 <= dims <= head:
        raise ValueError(
            "rope needs an even number of turned elements, 2 to H, got "
            f"dims={dims}, H={head} of x.shape={x.shape}. Use dims of at most {head - head % 2}."
        )
    if frequencies is not None:
        return jnp.asarray(frequencies).astype(dtype)
    # Powers in the dtype of the computation, as published models were trained in float32.
    exponent = np.arange(0, dims, 2, dtype=dtype) / np.asarray(dims, dtype)
    return jnp.asarray(1 / np.asarray(theta, dtype) ** exponent)


def _check_positions(x: jax.Array, positions: Any) -> None:
    batch = x.shape[:-2]
    rank = len(positions.shape)
    fits = 1 <= rank <= len(batch) and positions.shape[-1] == batch[-1]
    sizes = zip(positions.shape, batch[len(batch) - rank :], strict=True) if fits else ()
    if not fits or any(size not in (1, full) for size, full in sizes):
        raise ValueError(
            "rope needs x [..., T, N, H] and positions [T] or [..., T], got x.shape="
            f"{x.shape}, positions.shape={positions.shape}. Put tokens before heads, or repeat the "
            "positions."
        )
