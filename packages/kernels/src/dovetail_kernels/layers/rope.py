# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rotary position embedding.

Plain jnp, which XLA fuses. With gradients, pairs of neighbours (`interleaved`) take a quarter to a
half longer than halves (benchmarks/elementwise.py). One permutation of the projection's columns
converts an interleaved head to halves.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer

from dovetail_kernels.argument_names import operation
from dovetail_kernels.arrays import check_arrays


@operation
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
    """Rotates pair i of each head by `positions * frequencies[i]` (2104.09864, eq. 15).

        first, second = first cos - second sin, second cos + first sin

    Args:
        x: Queries or keys [..., T, N, H].
        positions: Integers [T], or with x's batch axes, each of x's size or 1. In float32,
            positions above 2**24 are rounded.
        theta: Base of the frequencies `theta ** (-2 i / dims)`, in radians per position. Give
            either `theta` or `frequencies`.
        dims: Number of rotated elements at the start of each head; the others pass unchanged. Even,
            2 to H. Default H. Only with `theta`.
        frequencies: Frequencies [dims / 2] in radians per position, for a scaled context.
        interleaved: Pairs elements 2 i and 2 i + 1 (GPT-J, DeepSeek, GLM). Default: i and
            i + dims / 2 (Llama, NeoX).
        factor: Multiplies the rotated elements (YaRN, 2309.00071, section 3.4, for both q and k).

    Returns:
        The rotated x, in x's dtype, computed in float32 or wider.

    Raises:
        ValueError: Both or neither of `theta` and `frequencies` are given, `dims` is given without
            `theta`, the number of rotated elements is odd or outside 2 to H, or positions do not
            fit x.

    Example:

        >>> import jax.numpy as jnp, numpy as np
        >>> from dovetail_kernels import rope
        >>> x = jnp.array([1.0, 2.0, 3.0, 4.0]).reshape(1, 1, 4)
        >>> print(np.asarray(rope(x, jnp.array([1]), theta=100.0)).round(3))
        [[[-1.984  1.591  2.462  4.18 ]]]
    """
    check_arrays("rope", x=x, positions=positions, frequencies=frequencies)
    dtype = np.promote_types(x.dtype, np.float32)
    frequencies = _frequencies(x, theta, dims, frequencies, dtype)
    _check_positions(x, positions)
    width = 2 * frequencies.shape[0]
    position = jnp.asarray(positions)
    position = position.reshape((1,) * (x.ndim - 2 - position.ndim) + (*position.shape, 1, 1))
    phase = position.astype(dtype) * frequencies.reshape((1,) * (x.ndim - 1) + (-1,))
    cos, sin = jnp.cos(phase), jnp.sin(phase)  # [..., T, 1, half]
    if factor != 1.0:
        cos, sin = factor * cos, factor * sin
    out = _turn(x[..., :width].astype(dtype), cos, sin, interleaved=interleaved).astype(x.dtype)
    return out if width == x.shape[-1] else jnp.concatenate([out, x[..., width:]], axis=-1)


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
            "rope needs an even number of rotated elements, 2 to H, got "
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
