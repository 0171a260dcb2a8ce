# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Losses of scalar scores: which of two answers is better, and whether an answer or step is good.

Both read a difference of scores, or a score, as the logit of a probability.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def bradley_terry(
    chosen: Float[Array, "*n"],
    rejected: Float[Array, "*n"],
    *,
    margin: Float[Array, "*n"] | float = 0.0,
) -> Float[Array, "*n"]:
    """Returns -log sigmoid(chosen - rejected - margin) of each pair.

    The negative log-likelihood of Bradley and Terry's model, in which the chosen answer wins with
    probability sigmoid(chosen - rejected) (2203.02155, equation 1). A margin asks for a difference
    of scores (2307.09288, equation 2).

    Args:
        chosen: Scores of the preferred answers.
        rejected: Scores of the others.
        margin: Difference of scores that costs log 2.

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_tune import losses
        >>> losses.bradley_terry(jnp.zeros(2), jnp.zeros(2)).round(4).tolist()
        [0.6930999755859375, 0.6930999755859375]
    """
    return -jax.nn.log_sigmoid(chosen - rejected - margin)


def binary_cross_entropy(
    scores: Float[Array, "*n"], labels: Float[Array, "*n"]
) -> Float[Array, "*n"]:
    """Returns -y log sigmoid(score) - (1 - y) log sigmoid(-score) for labels y in [0, 1]."""
    positive, negative = jax.nn.log_sigmoid(scores), jax.nn.log_sigmoid(-scores)
    return -(labels * positive + (1.0 - labels) * negative)


def centering(chosen: Float[Array, "*n"], rejected: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Returns (chosen + rejected)² of each pair, which is least for scores around 0.

    Bradley and Terry's model fixes scores up to a constant; this fixes the constant (2312.09244,
    section 2).
    """
    return jnp.square(chosen + rejected)
