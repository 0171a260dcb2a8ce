# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Losses of single answers, each desirable or not, without a partner.

With r = log pi(y|x) - log ref(y|x):

- kto (2402.01306, section 4.1): 1 - sigmoid(beta (r - z0)) of a desirable answer, and
  1 - sigmoid(beta (z0 - r)) of another. The paper's loss differs by the constant weight - 1.
- apo_zero_unpaired (2408.06266, equation 7 without pairs): 1 - sigmoid(beta r), and
  sigmoid(beta r).
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

UnpairedKind = Literal["kto", "apo_zero_unpaired"]


def unpaired(
    logps: Float[Array, " B"],
    ref_logps: Float[Array, " B"],
    desirable: Bool[Array, " B"],
    *,
    beta: float = 0.1,
    kl: Float[Array, ""] | float = 0.0,
    kind: UnpairedKind = "kto",
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> Float[Array, " B"]:
    """Returns weight * sigmoid(-beta (r - kl)) of desirable rows, sigmoid(beta (r - kl)) of others.

    Args:
        logps: Log-probabilities of the answers under the policy.
        ref_logps: The same under the reference.
        desirable: Whether an answer is desirable.
        beta: Inverse temperature of the rewards, above 0.
        kl: The reference point z0, at least 0, without a gradient. Only of "kto".
        kind: The loss.
        desirable_weight: Factor of desirable rows (the paper's lambda_D), at least 0.
        undesirable_weight: Factor of the others (lambda_U), at least 0.

    Raises:
        ValueError: An option is out of range.
    """
    check_unpaired(
        beta=beta,
        kind=kind,
        desirable_weight=desirable_weight,
        undesirable_weight=undesirable_weight,
    )
    point = jax.lax.stop_gradient(jnp.asarray(kl, logps.dtype)) if kind == "kto" else 0.0
    scaled = beta * (logps - ref_logps - point)
    weights = jnp.where(desirable, desirable_weight, undesirable_weight).astype(logps.dtype)
    # exp(log sigmoid) where sigmoid would round to 1 and its gradient to 0.
    return weights * jnp.exp(jax.nn.log_sigmoid(jnp.where(desirable, -scaled, scaled)))


def check_unpaired(
    *, beta: float, kind: str, desirable_weight: float, undesirable_weight: float
) -> None:
    """Raises ValueError if an option of `unpaired` is out of range.

    Args:
        beta: Inverse temperature.
        kind: The loss.
        desirable_weight: Factor of desirable rows.
        undesirable_weight: Factor of the others.
    """
    kinds = UnpairedKind.__args__
    if kind not in kinds:
        raise ValueError(f"kind must be one of {', '.join(kinds)}, got kind={kind!r}; pass 'kto'")
    if not 0 < beta < float("inf"):
        raise ValueError(f"beta must be above 0, got beta={beta}; leave it out for 0.1")
    weights = {"desirable_weight": desirable_weight, "undesirable_weight": undesirable_weight}
    for name, weight in weights.items():
        if not 0 <= weight < float("inf"):
            raise ValueError(f"{name} must be at least 0, got {name}={weight}; leave it out for 1")
