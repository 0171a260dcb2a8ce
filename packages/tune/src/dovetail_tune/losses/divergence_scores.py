# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Scores of an answer under an f-divergence: f'(t), with t the ratio of policy to reference.

DPO's penalty, the reverse KL, gives log t; other divergences give other scores (2309.16240). The
normalizer of the optimal policy cancels in the difference of two scores alone, so the other losses
can have the reverse KL only.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Divergence = Literal["reverse_kl", "forward_kl", "js_divergence", "alpha_divergence"]
DIVERGENCES: tuple[str, ...] = get_args(Divergence)

# exp of this is 5.5e34: float32 holds it, times a beta of 1000 and more. TRL has the same bound.
_LARGEST_EXPONENT = 80.0


def divergence_score(
    log_ratio: Float[Array, " N"], *, divergence: Divergence, alpha: float
) -> Float[Array, " N"]:
    """Returns f'(t) for t = exp(log_ratio).

    Args:
        log_ratio: Log-probability under the policy less that under the reference, in nats.
        divergence: "reverse_kl": log t. "forward_kl": 1 - 1 / t. "js_divergence":
            log(2t / (1 + t)). "alpha_divergence": (t^(alpha - 1) - 1) / (alpha - 1).
        alpha: Of "alpha_divergence". 1 is the reverse KL, 0 the forward KL.
    """
    if divergence == "reverse_kl":
        return log_ratio
    if divergence == "js_divergence":
        return math.log(2) + jax.nn.log_sigmoid(log_ratio)
    return power_score(log_ratio, -1.0 if divergence == "forward_kl" else alpha - 1.0)


def power_score(x: Float[Array, " N"], exponent: float) -> Float[Array, " N"]:
    """Returns (exp(exponent x) - 1) / exponent, and x for exponent 0.

    Beyond exp(80) the score stays constant and has no gradient, because float32 ends at exp(88).

    Args:
        x: Log of a ratio or a probability.
        exponent: Power of that ratio.
    """
    if exponent == 0:
        return x
    scaled = exponent * x
    # A select and not a minimum: its gradient is 0 even where the incoming one is infinite.
    bounded = jnp.where(scaled > _LARGEST_EXPONENT, _LARGEST_EXPONENT, scaled)
    return jnp.expm1(bounded) / exponent
