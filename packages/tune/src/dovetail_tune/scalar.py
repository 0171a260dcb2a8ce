# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The value of a loss as one number, for a training loop of your own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from dovetail_tune.types import Loss, Metric

_ONE = "loss"  # the name of the only term of a loss that returns no mapping, as in dovetail_train


def mean_loss(
    loss: Loss, *, weights: Mapping[str, float] | None = None
) -> Callable[..., tuple[Float[Array, ""], dict[str, Float[Array, ""]]]]:
    """Returns (model, batch, key=None) -> (mean loss, mean of each term), for `nnx.value_and_grad`.

    The mean loss is the sum over the terms of weight * sum / count. A term with count 0 adds 0.
    `dovetail_train.Trainer` takes the loss itself.

    Args:
        loss: Any loss of this package.
        weights: Factors by name of the term. Default: 1, and 0 for a `Metric`.

    Raises:
        ValueError: When called: `weights` names a term that the loss does not return.

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_tune import mean_loss
        >>> mean = mean_loss(lambda model, batch, *, key: (batch.sum(), jnp.float32(batch.size)))
        >>> float(mean(None, jnp.arange(3.0))[0])
        1.0
    """

    def value(model: Any, batch: Any, key: Any = None) -> tuple[Array, dict[str, Array]]:
        terms = loss(model, batch, key=key)
        named = dict(terms) if isinstance(terms, Mapping) else {_ONE: terms}
        unknown = set(weights or {}) - set(named)
        if unknown:
            raise ValueError(
                f"weights must name terms of the loss, got {', '.join(sorted(unknown))}; use some "
                f"of {', '.join(sorted(named))}"
            )
        means = {
            name: jnp.where(count > 0, total / jnp.where(count > 0, count, 1.0), 0.0)
            for name, (total, count) in named.items()
        }
        default = {name: 0.0 if isinstance(t, Metric) else 1.0 for name, t in named.items()}
        factors = default | dict(weights or {})
        # A factor of 0 is left out: 0 times NaN would be NaN.
        parts = [factors[name] * mean for name, mean in means.items() if factors[name]]
        return sum(parts, jnp.zeros(())), means

    return value
