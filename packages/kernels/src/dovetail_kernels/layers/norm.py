# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Normalization over the last axis, by mean square or by mean and variance.

Plain jnp: XLA fuses the forward pass into one pass. Gradients written by hand halve the time of the
function alone in bfloat16. In a network XLA fuses the function with its neighbours. There such
gradients cost a tenth more time and 1.6 times the memory or more. benchmarks/elementwise.py
measures both.
"""

from __future__ import annotations

from typing import Any, overload

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dovetail_kernels.argument_names import operation
from dovetail_kernels.arrays import check_arrays


@overload
def rms_norm(
    x: Float[Array, "*batch D"],
    scale: Float[Array, " D"] | None,
    *,
    eps: float,
    residual: None = None,
    unit_offset: bool = False,
    wide: bool = True,
) -> Float[Array, "*batch D"]: ...


@overload
def rms_norm(
    x: Float[Array, "*batch D"],
    scale: Float[Array, " D"] | None,
    *,
    eps: float,
    residual: Float[Array, "*batch D"],
    unit_offset: bool = False,
    wide: bool = True,
) -> tuple[Float[Array, "*batch D"], Float[Array, "*batch D"]]: ...


@operation
def rms_norm(
    x: Float[Array, "*batch D"],
    scale: Float[Array, " D"] | None,
    *,
    eps: float,
    residual: Float[Array, "*batch D"] | None = None,
    unit_offset: bool = False,
    wide: bool = True,
) -> Any:
    """Computes `x / sqrt(mean(x²) + eps) * scale` over the last axis (1910.07467, eq. 4).

    Args:
        x: Input [..., D].
        scale: Factors [D] of any float dtype. None: 1.
        eps: ε inside the square root.
        residual: Added to x before the norm, of x's shape and dtype. The sum is rounded to x's
            dtype, as with two separate lines.
        unit_offset: The stored scale is the factor less 1 (Gemma).
        wide: Multiply by scale in float32 (Gemma, gpt-oss, PyTorch). False: in x's dtype (Llama,
            Qwen, Mistral).

    Returns:
        The normalized x, in x's dtype, computed in float32 or wider. With a residual: the pair
        `(rms_norm(x + residual), x + residual)`.

    Raises:
        ValueError: The shape of scale, or the shape or dtype of residual, does not fit x.

    Example:

        >>> import jax.numpy as jnp, numpy as np
        >>> from dovetail_kernels import rms_norm
        >>> x = jnp.array([[1.0, 7.0]])
        >>> normed, stream = rms_norm(x, jnp.ones(2), eps=1e-6, residual=x)
        >>> print(np.asarray(normed).round(3))
        [[0.2 1.4]]
        >>> stream.tolist()
        [[2.0, 14.0]]
    """
    _check("rms_norm", x, residual, scale=scale)
    x = x if residual is None else x + residual
    dtype = np.promote_types(x.dtype, np.float32)
    broad = x.astype(dtype)
    inverse = jax.lax.rsqrt(jnp.mean(broad * broad, axis=-1, keepdims=True) + eps)
    normed = broad * inverse
    if scale is not None:
        product = dtype if wide else x.dtype
        factor = _along(scale, x.ndim).astype(product)
        normed = normed.astype(product) * (factor + 1 if unit_offset else factor)
    normed = normed.astype(x.dtype)
    return normed if residual is None else (normed, x)


@overload
def layer_norm(
    x: Float[Array, "*batch D"],
    scale: Float[Array, " D"] | None,
    bias: Float[Array, " D"] | None,
    *,
    eps: float,
    residual: None = None,
) -> Float[Array, "*batch D"]: ...


@overload
def layer_norm(
    x: Float[Array, "*batch D"],
    scale: Float[Array, " D"] | None,
    bias: Float[Array, " D"] | None,
    *,
    eps: float,
    residual: Float[Array, "*batch D"],
) -> tuple[Float[Array, "*batch D"], Float[Array, "*batch D"]]: ...


@operation
def layer_norm(
    x: Float[Array, "*batch D"],
    scale: Float[Array, " D"] | None,
    bias: Float[Array, " D"] | None,
    *,
    eps: float,
    residual: Float[Array, "*batch D"] | None = None,
) -> Any:
    """Computes `(x - mean(x)) / sqrt(var(x) + eps) * scale + bias` (1607.06450, eq. 4).

    Mean and variance are over the last axis. The variance is the mean of squared differences from
    the mean, in two passes, since a difference of large means would cancel.

    Args:
        x: Input [..., D].
        scale: Factors [D] of any float dtype. None: 1.
        bias: Summands [D] of any float dtype. None: 0.
        eps: ε inside the square root.
        residual: Added to x before the norm, of x's shape and dtype, as in `rms_norm`.

    Returns:
        The normalized x, in x's dtype, computed in float32 or wider. With a residual: the pair
        `(layer_norm(x + residual), x + residual)`.

    Raises:
        ValueError: The shape of scale or bias, or the shape or dtype of residual, does not fit x.

    Example:

        >>> import jax.numpy as jnp, numpy as np
        >>> from dovetail_kernels import layer_norm
        >>> x = jnp.array([[1.0, 3.0], [2.0, -2.0]])
        >>> out = layer_norm(x, jnp.array([1.0, 2.0]), jnp.array([0.0, 0.5]), eps=1e-6)
        >>> np.asarray(out).round(3).tolist()
        [[-1.0, 2.5], [1.0, -1.5]]
    """
    _check("layer_norm", x, residual, scale=scale, bias=bias)
    x = x if residual is None else x + residual
    dtype = np.promote_types(x.dtype, np.float32)
    broad = x.astype(dtype)
    centred = broad - jnp.mean(broad, axis=-1, keepdims=True)
    variance = jnp.mean(centred * centred, axis=-1, keepdims=True)
    normed = centred * jax.lax.rsqrt(variance + eps)
    if scale is not None:
        normed = normed * _along(scale, x.ndim).astype(dtype)
    if bias is not None:
        normed = normed + _along(bias, x.ndim).astype(dtype)
    normed = normed.astype(x.dtype)
    return normed if residual is None else (normed, x)


def _along(vector: jax.Array, rank: int) -> jax.Array:
    """Reshapes [D] to [1, ..., 1, D], for users who forbid rank promotion."""
    return vector.reshape((1,) * (rank - 1) + vector.shape)


def _check(operation: str, x: Any, residual: Any, **vectors: Any) -> None:
    check_arrays(operation, x=x, residual=residual, **vectors)
    for name, vector in vectors.items():
        if vector is not None and vector.shape != x.shape[-1:]:
            raise ValueError(
                f"{operation} needs {name} [D] for x [..., D], got {name}.shape={vector.shape}, "
                f"x.shape={x.shape}. Give one number per element of the last axis."
            )
    if residual is not None and (residual.shape, residual.dtype) != (x.shape, x.dtype):
        raise ValueError(
            f"{operation} needs residual of x's shape and dtype, got residual {residual.dtype}"
            f"{list(residual.shape)}, x {x.dtype}{list(x.shape)}. Use residual.astype(x.dtype)."
        )
