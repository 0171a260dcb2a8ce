# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""ORPO's loss of a pair: the ratio of the odds of its answers (2403.07691)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

# Nearer to 0, a mean of log-probabilities in float32 is rounding: 1 - p has no digit left.
_CERTAIN = -(2.0**-24)


def log1mexp(x: Float[Array | np.ndarray, "*n"]) -> Float[Array, "*n"]:
    """Returns log(1 - exp(x)) for x < 0, without cancellation at either end.

    From -2^-24 on, the value stays at that of -2^-24 and the gradient is 0: float32 cannot tell
    such a probability from 1.

    Args:
        x: A log-probability, in nats.
    """
    x = jnp.asarray(x)
    x = jnp.where(x > _CERTAIN, _CERTAIN, x)
    half = -0.6931472  # log(1/2): below, exp(x) is small; above, expm1(x) is
    near = x > half
    # Each branch reads a harmless value where the other is taken, for finite gradients.
    above = jnp.log(-jnp.expm1(jnp.where(near, x, half)))
    below = jnp.log1p(-jnp.exp(jnp.where(near, half, x)))
    return jnp.where(near, above, below)


def odds_ratio(
    chosen: Float[Array | np.ndarray, " N"], rejected: Float[Array | np.ndarray, " N"]
) -> Float[Array, " N"]:
    """Returns -log sigmoid(log(odds(chosen) / odds(rejected))), with odds(p) = p / (1 - p).

    2403.07691, equations 4 and 7.

    Args:
        chosen: Mean log-probability of the tokens of each chosen answer.
        rejected: The same of the rejected answers.

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_tune.losses import odds_ratio
        >>> p = jnp.array([0.5]), jnp.array([0.25])  # odds 1 and 1/3
        >>> float(jnp.exp(-odds_ratio(*map(jnp.log, p)))[0])
        0.75
    """
    own, other = (jnp.asarray(x) - log1mexp(x) for x in (chosen, rejected))
    return -jax.nn.log_sigmoid(own - other)
