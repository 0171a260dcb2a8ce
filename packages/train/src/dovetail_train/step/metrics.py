# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Metrics of a step: scalars that stay on the device until someone reads them."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from dovetail_train._patterns import name_of


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Metrics:
    """Results of one step, on the device. Reading them waits for the step.

    Attributes:
        scalars: f32[] by name: "loss" (Σ weight·sum/count), "grad_norm", "count" (for a loss of
            several terms "loss/NAME" and "count/NAME"), "param_norm" (before the update),
            "update_norm", "tokens" (mask > 0) if the batch has a mask, and "skipped", 0 or 1,
            unless the trainer refuses nothing. A term with count 0 contributes 0. "learning_rate",
            or "learning_rate/GROUP" for each group of the optimizer, if it is known: that of the
            update, or the one that a skipped update would have had.
        grad_norms: f32[leaves], the gradient norm of each parameter, in the order of
            `jax.tree.leaves`.
    """

    scalars: dict[str, Any]
    grad_norms: Any

    def __repr__(self) -> str:
        return f"Metrics({', '.join(self.scalars)}; read() waits for the step and gives numbers)"

    def read(self) -> dict[str, float]:
        """Returns the scalars as Python floats; waits for the step.

        "loss/NAME" is left out if "count/NAME" is 0.
        """
        scalars = {name: float(x) for name, x in jax.device_get(self.scalars).items()}
        empty = {
            f"loss/{name[6:]}" for name, x in scalars.items() if name[:6] == "count/" and x == 0
        }
        return {name: x for name, x in scalars.items() if name not in empty}

    def gradient_norms(self, params: Any) -> dict[str, float]:
        """Returns the gradient norm of each parameter by name. `params` is a tree like theirs.

        Non-finite norms come first, then the largest. Waits for the step.
        """
        norms = jax.device_get(self.grad_norms)
        leaves = jax.tree_util.tree_leaves_with_path(params)
        named = {name_of(path): float(x) for (path, _), x in zip(leaves, norms, strict=True)}
        return dict(sorted(named.items(), key=lambda item: (math.isfinite(item[1]), -item[1])))


def is_finite(scalars: Mapping[str, float]) -> bool:
    """Tests whether loss and gradient norm are finite, and so the update."""
    return math.isfinite(scalars["loss"]) and math.isfinite(scalars["grad_norm"])


def finite(scalars: Mapping[str, float]) -> dict[str, float]:
    """Returns the finite scalars as Python floats."""
    numbers = {name: float(x) for name, x in scalars.items()}
    return {name: x for name, x in numbers.items() if math.isfinite(x)}


@jax.transfer_guard("allow")  # it reads on a device; the message must not be about that
def first_non_finite(tree: Any) -> str | None:
    """Returns the name of the first float leaf with a NaN or infinity, or None. Reads every
    leaf.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if jnp.issubdtype(leaf.dtype, jnp.floating) and not jnp.isfinite(leaf).all():
            return name_of(path)
    return None
