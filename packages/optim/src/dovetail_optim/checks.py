# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of numeric arguments.

Under `optax.inject_hyperparams` every number is a traced array of the state. A rate may be traced.
A number that decides shapes or the number of steps may not; name it in `static_args` there.
"""

import math
from typing import Any

import jax.numpy as jnp
from jax.core import Tracer


def check_rate(name: str, rate: Any) -> None:
    """Raises ValueError unless `rate` is a schedule or a finite number of at least 0."""
    if callable(rate) or isinstance(rate, Tracer):
        return
    if not (jnp.ndim(rate) == 0 and math.isfinite(rate) and rate >= 0):
        raise ValueError(
            f"{name} must be a number of at least 0, or a schedule of the step; got "
            f"{name}={rate}; write {name}=0.1, or lambda step: 0.1 * 0.99**step"
        )


def check_share(name: str, value: Any) -> None:
    """Raises ValueError unless `value` is in [0, 1)."""
    if not isinstance(value, Tracer) and not 0 <= value < 1:
        raise ValueError(f"{name} must be in [0, 1); got {name}={value}; write {name}=0.95")


def check_count(name: str, value: Any, *, example: str) -> None:
    """Raises an error unless `value` is an untraced integer of at least 1.

    Args:
        name: Name of the argument.
        value: Its value.
        example: A valid value, for the message.
    """
    check_known(name, value)
    if value < 1:
        raise ValueError(f"{name} must be at least 1; got {name}={value}; write {name}={example}")


def check_known(name: str, value: Any) -> None:
    """Raises TypeError for a traced value."""
    if isinstance(value, Tracer):
        raise TypeError(
            f"{name} must be known when the transformation is made; got a traced value; write "
            f"optax.inject_hyperparams(..., static_args=({name!r},))"
        )
