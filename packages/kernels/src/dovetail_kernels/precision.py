# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Precision of the products of an operation, by the dtype of its arguments.

XLA's default multiplies float32 in TF32 (10 bits) on NVIDIA GPUs and in one bfloat16 pass (7 bits)
on TPUs. Operations promise more, and name it in each product:

| arguments | products | sums |
|---|---|---|
| float64 | float64 | float64 |
| float32 | float32 | float32 |
| float16, bfloat16 | operands rounded to the arguments' dtype at most | float32 |

`jax.default_matmul_precision` overrides it: a program that asks for "tensorfloat32" gets it.
A CPU multiplies float32 in float32 under any setting.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


def matmul_precision(dtype: Any) -> jax.lax.Precision | None:
    """Returns the `precision` of products for arguments of `dtype`. None is the program's own."""
    # XLA rounds a float16 operand to bfloat16 on a TPU by default. bfloat16 is exact in one pass.
    if _asked() is not None or jnp.dtype(dtype) == jnp.bfloat16:
        return None
    return jax.lax.Precision.HIGHEST


def product(formula: str, a: Array, b: Array, *, dtype: Any) -> Float[Array, "..."]:
    """Computes `jnp.einsum(formula, a, b)` for arguments of `dtype`.

    Args:
        formula: The indices, as in `jnp.einsum`.
        a, b: The operands.
        dtype: Dtype of the operation's arguments, which decides the precision.

    Returns:
        The sums of products, in at least float32.
    """
    sums = np.promote_types(jnp.dtype(dtype), np.float32)
    return jnp.einsum(formula, a, b, precision=matmul_precision(dtype), preferred_element_type=sums)


def describe_precision(dtype: Any) -> str:
    """Returns the precision of products for arguments of `dtype` in words, for `explain`."""
    dtype, asked = jnp.dtype(dtype), _asked()
    if dtype == jnp.float32 and asked is not None:
        return f"products as jax.default_matmul_precision={asked!r}"
    if dtype.itemsize >= 4:
        return f"products in {dtype.name}"
    return f"products of {dtype.name}, sums in float32"


def _asked() -> str | None:
    # JAX adds its options to the class when it is imported.
    return jax.config.jax_default_matmul_precision  # pyright: ignore[reportAttributeAccessIssue]
