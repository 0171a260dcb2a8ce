# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Logits [B, V], and options that are one number or one per row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jaxtyping import Float, Int

from dovetail_kernels.arrays import check_arrays

PerRow = (
    float
    | int
    | Float[Array | np.ndarray, " B"]
    | Int[Array | np.ndarray, " B"]
    | Float[Array | np.ndarray, ""]
    | Int[Array | np.ndarray, ""]
)


class _Range(NamedTuple):
    """Allowed values of an option: a test for NumPy and JAX, its words, and advice."""

    holds: Callable[[Any], Any]
    must: str
    use: str


_RANGES = {
    "temperature": _Range(
        lambda x: (x >= 0) & (x < jnp.inf), "finite and >= 0", "0 for the largest logit"
    ),
    "top_k": _Range(lambda x: x >= 0, "an integer >= 0", "0 for all"),
    "top_p": _Range(lambda x: (x > 0) & (x <= 1), "in (0, 1]", "1.0 for all"),
    "min_p": _Range(lambda x: (x >= 0) & (x <= 1), "in [0, 1]", "0.0 for all"),
    "repetition_penalty": _Range(
        lambda x: (x > 0) & (x < jnp.inf), "finite and > 0", "1.0 for no penalty"
    ),
    "frequency_penalty": _Range(lambda x: abs(x) < jnp.inf, "finite", "0.0 for no penalty"),
    "presence_penalty": _Range(lambda x: abs(x) < jnp.inf, "finite", "0.0 for no penalty"),
}


def is_valid(name: str, value: Any) -> Any:
    """Returns a mask of the values in range, for NumPy and JAX alike. NaN is never in range."""
    return _RANGES[name].holds(value)


def per_row(name: str, value: Any, batch: Any) -> Array:
    """Checks an option and returns it as [B], in float32, or int32 for top_k.

    Args:
        name: Name of the option.
        value: A number, or an array of no axes or [B].
        batch: B.
    """
    traced = isinstance(value, Tracer)
    given = value if traced or isinstance(value, jax.Array) else np.asarray(value)
    _, must, use = _RANGES[name]
    if not jnp.issubdtype(given.dtype, jnp.number):
        raise TypeError(f"{name} must be a number or [B], got {name}={value!r}. Use {use}.")
    if name == "top_k" and not jnp.issubdtype(given.dtype, jnp.integer):
        raise TypeError(
            f"top_k must be integers, got top_k={value!r} of {given.dtype}. Use an int, {use}."
        )
    if given.shape not in ((), (batch,)):
        raise ValueError(
            f"{name} must be a number or [B] = [{batch}], got {name}.shape={given.shape}. Use one "
            "value for each row of logits."
        )
    if not traced and not bool(np.all(is_valid(name, np.asarray(given)))):
        wrong = np.atleast_1d(np.asarray(given))
        first = wrong[int(np.argmin(is_valid(name, wrong)))]
        raise ValueError(f"{name} must be {must}, got {name}={first}. Use {use}.")
    row = jnp.asarray(given, jnp.int32 if name == "top_k" else jnp.float32)
    return jnp.broadcast_to(row, (batch,))


def check_logits(operation: str, logits: Any) -> None:
    """Raises an error for logits other than [B, V] in a floating dtype of at most 32 bits."""
    check_arrays(operation, logits=logits)
    if len(logits.shape) != 2 or logits.shape[1] == 0:
        raise ValueError(
            f"logits must be [B, V] with V >= 1, got logits.shape={logits.shape}. Use "
            "logits.reshape(-1, V)."
        )
    if jnp.dtype(logits.dtype).name not in ("float32", "bfloat16", "float16"):
        raise TypeError(
            f"logits must be float32, bfloat16 or float16, got logits.dtype={logits.dtype}. Use "
            ".astype(jnp.float32)."
        )
