# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments of an engine."""

from __future__ import annotations

import numbers

from dovetail_infer.types import Decoder


def check_sizes(*, least: int = 1, **sizes: int) -> None:
    """Refuses sizes that are no integers, or below the least."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, numbers.Integral):
            raise TypeError(f"{name} must be an integer, got {name}={size!r}. Use the default.")
        if size < least:
            raise ValueError(
                f"{name} must be at least {least}, got {name}={size}. Use the default."
            )


def check_model(model: object) -> None:
    """Refuses what is no decoder."""
    if not isinstance(model, Decoder):
        raise TypeError(
            "model must be a decoder with layers, features and head, got "
            f"{type(model).__name__}. See dovetail_infer.Decoder."
        )
