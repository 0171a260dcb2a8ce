# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Normalisation over the last axis, of the mean square or of mean and variance.

Plain jnp, which XLA fuses into one pass forward. Gradients written by hand halve the time of the
function alone in bfloat16. In a network, where XLA fuses them with their neighbours, they make it
slower by a tenth and hold 1.6 times the memory or more: benchmarks/elementwise.py measures both.
"""

from typing import Any, overload

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


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


def rms_norm(
    x: Float[Array, "*batch D"],
    scale: Float[Array, " D"] | None,
    *,
    eps: float,
    residual: Float[Array, "*batch D"] | None = None,
    unit_offset: bool = False,
    wide: bool = True,
) -> Any:
    """`x / sqrt(mean(x²) + eps) * scale` over the last axis (1910.07467, eq. 4).

    With a residual: `(rms_norm(x + residual), x + residual)`, the sum rounded to the dtype of x
    before it is normed, as two separate lines would.

    Computed in float32 or wider; the dtype of x out, whatever that of scale. wide: whether the
    product with scale is still in float32 (Gemma, gpt-oss, PyTorch) or in the dtype of x (Llama,
    Qwen, Mistral). unit_offset: scale is stored less 1 (Gemma). scale None is 1.

    Raises:
        ValueError: scale or residual that does not fit x.

    Example:

        import jax, jax.numpy as jnp
        from dovetail_kernels import rms_norm
        x = jax.random.normal(jax.random.key(0), (2, 3, 8))
        normed, stream = rms_norm(x, jnp.ones(8), eps=1e-6, residual=x)
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


def layer_norm(
    x: Float[Array, "*batch D"],
    scale: Float[Array, " D"] | None,
    bias: Float[Array, " D"] | None,
    *,
    eps: float,
    residual: Float[Array, "*batch D"] | None = None,
) -> Any:
    """`(x - mean(x)) / sqrt(var(x) + eps) * scale + bias` over the last axis (1607.06450, eq. 4).

    With a residual: `(layer_norm(x + residual), x + residual)`, as in `rms_norm`. Computed in
    float32 or wider; the dtype of x out. The variance is the mean of squared differences from the
    mean, in two passes, since a difference of large means would cancel. scale None is 1, bias
    None is 0.

    Raises:
        ValueError: scale, bias or residual that does not fit x.
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
    """[D] as [1, ..., 1, D], for users who forbid promotion of ranks."""
    return vector.reshape((1,) * (rank - 1) + vector.shape)


def _check(operation: str, x: Any, residual: Any, **vectors: Any) -> None:
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
