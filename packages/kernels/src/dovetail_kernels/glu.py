# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Gated linear units.

Elementwise on the two products, not fused with them: a product's epilogue is XLA's to fuse. What a
gradient by JAX's own rules costs is memory, since it keeps the activation and what it was made of
beside gate and up. So the function is one `jax.checkpoint`, which keeps gate and up and computes
the rest again: a quarter less for two feed-forward layers in bfloat16, a tenth in float32, at the
same time (benchmarks/elementwise.py).
"""

import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

_FUNCTIONS = {
    "silu": jax.nn.silu,
    "gelu": functools.partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
    "relu": jax.nn.relu,
    "sigmoid": jax.nn.sigmoid,
}


def glu(
    gate: Float[Array, "*batch F"],
    up: Float[Array, "*batch F"],
    *,
    activation: Literal["silu", "gelu", "gelu_tanh", "relu", "sigmoid"] = "silu",
    alpha: float = 1.0,
    limit: float | None = None,
    offset: float = 0.0,
) -> Float[Array, "*batch F"]:
    """`activation(gate) * (up + offset)` (2002.05202, eq. 5 and 6).

    "gelu" is exact, by erf, "gelu_tanh" its approximation (1606.08415, section 2). alpha: "silu" is
    `gate * sigmoid(alpha * gate)`. limit: first, gate is cut to at most limit, and up to -limit to
    limit. gpt-oss has alpha=1.702, limit=7.0, offset=1.0.

    Computed in float32 or wider; the dtype of the arguments out. The backward pass keeps gate and
    up alone.

    Raises:
        ValueError: gate and up that differ in shape or dtype; an unknown activation; alpha with
            another activation than "silu"; a limit of 0 or less.

    Example:

        import jax
        from dovetail_kernels import glu
        x, w = (jax.random.normal(jax.random.key(i), s) for i, s in enumerate([(5, 8), (2, 8, 16)]))
        print(glu(x @ w[0], x @ w[1], activation="gelu_tanh").shape)
    """
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
