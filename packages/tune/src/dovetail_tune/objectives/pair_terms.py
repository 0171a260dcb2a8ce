# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Terms of a loss over pairs: sums over the pairs that count, and the metrics of their rewards."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from dovetail_tune.rows import Pair, mean_over, no_gradient, poisoned
from dovetail_tune.types import Metric, Term


def pair_term(
    losses: Float[Array, " N"],
    *,
    intact: Bool[Array, " N"],
    where: Bool[Array, " N"],
    weight: float = 1.0,
) -> Term:
    """Returns (weight times the sum of the losses, number of pairs).

    Args:
        losses: The loss of each pair.
        intact: False for torn pairs, which make the sum NaN.
        where: True for the pairs that count.
        weight: Factor of the term.
    """
    total, count = mean_over(poisoned(losses, intact), where)
    return weight * total, count


def nll_term(
    logps: Float[Array, " N"],
    tokens: Float[Array, " N"],
    *,
    intact: Bool[Array, " N"],
    where: Bool[Array, " N"],
    weight: float = 1.0,
) -> Term:
    """Returns (weight times the negative log-likelihood of chosen answers, number of their tokens).

    Args:
        logps: Log-probability of each chosen answer.
        tokens: Number of tokens of each.
        intact: False for torn pairs, which make the sum NaN.
        where: True for the pairs that count.
        weight: Factor of the term.
    """
    total, _ = mean_over(poisoned(-logps, intact), where)
    return weight * total, jnp.where(where, tokens, 0.0).sum()


def pair_metrics(rewards: Pair, logps: Pair, where: Bool[Array, " N"]) -> dict[str, Metric]:
    """Returns the means over pairs of rewards, margin, accuracy and log-probabilities.

    A margin of 0 counts as wrong.

    Args:
        rewards: Implicit rewards of chosen and rejected answers.
        logps: Log-probabilities of both.
        where: True for the pairs that count.
    """
    rewards, logps = no_gradient(rewards), no_gradient(logps)
    values = {
        "reward_chosen": rewards.chosen,
        "reward_rejected": rewards.rejected,
        "margin": rewards.chosen - rewards.rejected,
        "accuracy": (rewards.chosen > rewards.rejected).astype(jnp.float32),
        "logps_chosen": logps.chosen,
        "logps_rejected": logps.rejected,
    }
    return {name: Metric(*mean_over(value, where)) for name, value in values.items()}
