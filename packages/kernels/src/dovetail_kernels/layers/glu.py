# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Gated linear units.

The function is elementwise on the two products and not fused with them: XLA fuses a product's
epilogue. Differentiated by JAX's own rules it needs memory, since JAX keeps the activation and its
intermediates beside gate and up. The function is therefore one `jax.checkpoint`, which keeps gate
and up and recomputes the rest. This saves a quarter of the memory of two feed-forward layers in
bfloat16, and a tenth in float32, at the same time (benchmarks/elementwise.py).
"""

from __future__ import annotations

import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dovetail_kernels.argument_names import operation
from dovetail_kernels.arrays import check_arrays

_FUNCTIONS = {
    "silu": jax.nn.silu,
    "gelu": functools.partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
    "relu": jax.nn.relu,
    "sigmoid": jax.nn.sigmoid,
}


@operation
def glu(
    gate: Float[Array, "*batch F"],
    up: Float[Array, "*batch F"],
    *,
    activation: Literal["silu", "gelu", "gelu_tanh", "relu", "sigmoid"] = "silu",
    alpha: float = 1.0,
    limit: float | None = None,
    offset: float = 0.0,
) -> Float[Array, "*batch F"]:
    """Computes `activation(gate) * (up + offset)` (2002.05202, eq. 5 and 6).

    gpt-oss has alpha=1.702, limit=7.0, offset=1.0.

    Args:
        gate: Input of the activation, [..., F].
        up: Linear input, of gate's shape and dtype.
        activation: "silu" is `gate * sigmoid(alpha * gate)`. "gelu" is exact, by erf. "gelu_tanh"
            is its approximation (1606.08415, section 2).
        alpha: Factor inside the sigmoid of "silu".
        limit: Clips gate to at most `limit` and up to [-limit, limit], before all else. None: no
            clipping.
        offset: Added to up.

    Returns:
        The product [..., F] in the dtype of the arguments, computed in float32 or wider. The
        backward pass keeps only gate and up.

    Raises:
        ValueError: gate and up differ in shape or dtype, `activation` is unknown, `alpha` is given
            with another activation than "silu", or `limit` is not above 0.

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_kernels import glu
        >>> gate, up = jnp.array([[-1.0, 0.0, 2.0]]), jnp.array([[1.0, 2.0, 3.0]])
        >>> glu(gate, up, activation="relu", offset=1.0).tolist()
        [[0.0, 0.0, 8.0]]
    """
    check_arrays("glu", gate=gate, up=up)
    if (gate.shape, gate.dtype) != (up.shape, up.dtype):
        raise ValueError(
            f"glu needs gate and up of one shape and dtype, got gate {gate.dtype}"
            f"{list(gate.shape)}, up {up.dtype}{list(up.shape)}. Cast or reshape one of them."
        )
    if activation not in _FUNCTIONS:
        raise ValueError(
            f"glu needs activation among {list(_FUNCTIONS)}, got activation={activation!r}. Use "
            "one of them."
        )
    if alpha != 1.0 and activation != "silu":
        raise ValueError(
            f"alpha belongs to activation='silu', got alpha={alpha}, activation={activation!r}. "
            "Leave alpha out."
        )
    if limit is not None and not limit > 0:
        raise ValueError(f"limit must be above 0, got limit={limit}. Leave it out to cut nothing.")
    options = {"activation": activation, "alpha": alpha, "limit": limit, "offset": offset}
    return jax.checkpoint(functools.partial(_glu, **options))(gate, up)


def _glu(
    gate: jax.Array, up: jax.Array, *, activation: str, alpha: float, limit: Any, offset: float
) -> jax.Array:
    dtype = np.promote_types(gate.dtype, np.float32)
    left, right = gate.astype(dtype), up.astype(dtype)
    if limit is not None:
        left, right = jnp.minimum(left, limit), jnp.clip(right, -limit, limit)
    left = left * jax.nn.sigmoid(alpha * left) if alpha != 1.0 else _FUNCTIONS[activation](left)
    return (left * (right + offset if offset else right)).astype(gate.dtype)
