# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""SimPO's loss of a pair: mean log-probabilities that differ by a margin (2405.14734)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dovetail_tune.losses.divergence_scores import power_score
from dovetail_tune.losses.options import check_number


def target_margin(
    chosen: Float[Array | np.ndarray, " N"],
    rejected: Float[Array | np.ndarray, " N"],
    *,
    beta: float = 2.0,
    gamma: float = 1.0,
    alpha: float = 0.0,
) -> Float[Array, " N"]:
    """Returns -log sigmoid(beta (r(chosen) - r(rejected)) - gamma), SimPO's equation 6.

    The reward r is the mean log-probability, or AlphaPO's (1 - p^-alpha) / alpha (2501.03884) of
    the mean probability p, which is the former for alpha 0.

    Args:
        chosen: Mean log-probability of the tokens of each chosen answer.
        rejected: The same of the rejected answers.
        beta: Scale of the rewards; above 0.
        gamma: Margin between the rewards; at least 0.
        alpha: Shape of the reward.

    Raises:
        ValueError: An option is out of range.

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_tune.losses import target_margin
        >>> target_margin(jnp.array([-1.0]), jnp.array([-1.5]), beta=2.0, gamma=1.0)
        Array([0.6931472], dtype=float32)
    """
    check_margin(beta=beta, gamma=gamma, alpha=alpha)
    own, other = (power_score(jnp.asarray(x), -alpha) for x in (chosen, rejected))
    return -jax.nn.log_sigmoid(beta * (own - other) - gamma)


def check_margin(*, beta: float, gamma: float, alpha: float) -> None:
    """Raises ValueError unless the options of `target_margin` are in their ranges.

    Args:
        beta: Scale of the rewards.
        gamma: Margin.
        alpha: Shape of the reward.
    """
    check_number(beta > 0, "beta must be above 0 and finite", beta=beta, instead=2.0)
    check_number(gamma >= 0, "gamma must be at least 0 and finite", gamma=gamma, instead=1.0)
    check_number(True, "alpha must be finite", alpha=alpha, instead=0.0)
