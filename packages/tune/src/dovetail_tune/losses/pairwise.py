# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Losses of a pair from the log-probabilities of its answers under a policy and a reference.

With h = (chosen - ref_chosen) - (rejected - ref_rejected), the margin of the implicit rewards over
beta, DPO's loss is -log sigmoid(beta h) (2305.18290, equation 7).
"""

from __future__ import annotations

from typing import Literal

import jax
from jaxtyping import Array, Float

Kind = Literal["sigmoid"]


def pairwise(
    chosen: Float[Array, " N"],
    rejected: Float[Array, " N"],
    ref_chosen: Float[Array, " N"],
    ref_rejected: Float[Array, " N"],
    *,
    beta: float = 0.1,
    kind: Kind = "sigmoid",
) -> Float[Array, " N"]:
    """Returns the loss of each pair."""
    del kind
    margin = (chosen - ref_chosen) - (rejected - ref_rejected)
    return -jax.nn.log_sigmoid(beta * margin)
