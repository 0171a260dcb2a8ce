# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Transformations that a wrapper is given."""

from typing import Any

import optax


def with_extra_args(tx: Any) -> optax.GradientTransformationExtraArgs:
    """Returns `tx`, made to accept extra arguments. Raises TypeError unless it has `init` and
    `update`.
    """
    if not all(callable(getattr(tx, name, None)) for name in ("init", "update")):
        raise TypeError(
            f"a transformation must have init and update, as those of Optax; got {tx!r}; write "
            f"optax.adamw(1e-3)"
        )
    return optax.with_extra_args_support(tx)
