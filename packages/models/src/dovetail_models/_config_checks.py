# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of configurations. Each error names the field, its value and a value to use."""

import math


def positive(config: object, *names: str) -> None:
    """Raises ValueError if a named field is not above 0 and finite."""
    for name in names:
        value = getattr(config, name)
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(
                f"{type(config).__name__}.{name} must be positive, got {name}={value}. "
                f"Pass {name}= a number above 0."
            )


def positive_or_none(config: object, *names: str) -> None:
    """Raises ValueError if a named field is neither None nor above 0 and finite."""
    positive(config, *(name for name in names if getattr(config, name) is not None))


def one_of(config: object, name: str, options: tuple[str, ...]) -> None:
    """Checks a field with named options.

    Args:
        config: The configuration.
        name: Name of the field.
        options: Its possible values.

    Raises:
        ValueError: The value is not among them.
    """
    value = getattr(config, name)
    if value not in options:
        raise ValueError(
            f"{type(config).__name__}.{name} must be one of {options}, got {name}={value!r}. "
            f"Pass {name}={options[0]!r}, for example."
        )


def even(config: object, name: str) -> None:
    """Raises ValueError if a field is odd."""
    value = getattr(config, name)
    if value % 2:
        raise ValueError(
            f"RoPE rotates pairs of numbers, so {name} must be even, got {name}={value}. "
            f"Use {name}={value + 1}."
        )


def divisors(n: int) -> tuple[int, ...]:
    """Returns the divisors of n, ascending."""
    return tuple(d for d in range(1, n + 1) if n % d == 0)
