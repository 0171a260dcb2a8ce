# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Preference losses over pairs with a reference, in the trainer's contract."""

from __future__ import annotations

from typing import Any

from dovetail_tune.logps import token_logps
from dovetail_tune.losses.pairwise import pairwise
from dovetail_tune.reference import Field, Reference, policy_of, reference_logps
from dovetail_tune.rows import (
    Pair,
    counted,
    intact_pairs,
    mean_over,
    no_gradient,
    poisoned,
    row_sums,
    split_pairs,
)
from dovetail_tune.types import Loss, Metric, Scorer, Term

_PAIR = 2  # rows that the trainer keeps together


def dpo(
    *,
    beta: float = 0.1,
    reference: Reference = Field(),  # noqa: B008 - frozen
    scorer: Scorer = token_logps,
) -> Loss:
    """Returns the loss of direct preference optimization (2305.18290) over pairs of rows."""

    def loss(model: Any, batch: Any, *, key: Any) -> dict[str, Term]:
        del key  # nothing here is random
        intact = intact_pairs(batch)
        policy = policy_of(model, reference)
        logps = split_pairs(row_sums(scorer(policy, batch).logprob))
        wanted = reference_logps(model, batch, reference, scorer=scorer)
        ref = split_pairs(wanted if wanted.ndim == 1 else row_sums(wanted))
        losses = poisoned(pairwise(*logps, *ref, beta=beta), intact)
        where = counted(batch)
        return {"sigmoid": mean_over(losses, where), **_metrics(logps, ref, beta, where)}

    loss.rows = _PAIR  # pyright: ignore[reportFunctionMemberAccess] - a GroupLoss
    return loss


def _metrics(logps: Pair, ref: Pair, beta: float, where: Any) -> dict[str, Metric]:
    logps, ref = no_gradient(logps), no_gradient(ref)
    chosen, rejected = (beta * (own - base) for own, base in zip(logps, ref, strict=True))
    values = {
        "reward_chosen": chosen,
        "reward_rejected": rejected,
        "margin": chosen - rejected,
        "accuracy": (chosen > rejected).astype(chosen.dtype),
        "logps_chosen": logps.chosen,
        "logps_rejected": logps.rejected,
    }
    return {name: Metric(*mean_over(value, where)) for name, value in values.items()}
