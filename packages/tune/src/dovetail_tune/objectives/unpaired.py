# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""KTO and its relatives: preference losses over single answers, in the trainer's contract."""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float

from dovetail_tune import _elsewhere
from dovetail_tune.chunks import map_rows
from dovetail_tune.logps import token_logps
from dovetail_tune.losses.unpaired import UnpairedKind, check_unpaired, unpaired
from dovetail_tune.reference import Field, Reference, policy_of, reference_logps
from dovetail_tune.rows import intact_pairs, mean_over, no_gradient, row_sums, whole_rows
from dovetail_tune.types import Batch, Loss, Metric, Scorer, Term, grouped

_PREFIX = "kl_"  # of the fields of with_mismatched


@_elsewhere.preference
def kto(
    *,
    beta: float = 0.1,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
    kind: UnpairedKind = "kto",
    reference: Reference = Field(),  # noqa: B008 - frozen
    scorer: Scorer = token_logps,
    chunks: int = 1,
) -> Loss:
    """Returns the loss of Kahneman-Tversky optimization (2402.01306) over single answers.

    Rows are desirable where the field `desirable` [B] is True or 1, and not where it is False or 0;
    another value makes the loss NaN. Without that field, batches with `pair_ids` have desirable
    rows 2i and undesirable rows 2i + 1. The loss is the mean over the rows with a target that
    counts.

    Kind "kto" needs the fields of `with_mismatched`. Its reference point z0 is the mean over their
    rows with a target that counts, of the log ratios of policy and reference, at least 0; without
    such a row it is 0. z0 is one for the whole batch, so the trainer refuses to split it: save
    memory with `chunks`. Over pairs in microbatches, "apo_zero_unpaired" needs `loss.rows = 2`; a
    pair that was split makes the loss NaN.

    Args:
        beta: Inverse temperature of the rewards, above 0.
        desirable_weight: Factor of desirable rows, at least 0.
        undesirable_weight: Factor of the others, at least 0.
        kind: "kto", or "apo_zero_unpaired" (2408.06266) with z0 = 0 and without mismatched rows.
        reference: The reference. `with_reference(with_mismatched(batches), model)` adds the fields
            for `Field()`.
        scorer: Scores the targets of a batch.
        chunks: Parts of the rows that are computed at a time, and again in the backward pass.

    Returns:
        A loss with the term `kind`, and as metrics, means over rows: reward_desirable and
        reward_undesirable, beta times the log ratio; and of "kto" margin, the difference of both,
        kl, its z0, and kl_rows, the share of rows with a mismatched answer.

    Raises:
        ValueError: An option is out of range. When called: a field is missing, or a concrete label
            is another value: names the row.

    Example:

        >>> from dovetail_tune import Frozen, kto
        >>> loss = kto(undesirable_weight=0.5, reference=Frozen(), chunks=4)
        >>> loss.whole_batch
        True
    """
    formula = functools.partial(
        unpaired,
        beta=beta,
        kind=kind,
        desirable_weight=desirable_weight,
        undesirable_weight=undesirable_weight,
    )
    check_unpaired(**formula.keywords)

    def scores(model: Any, batch: Batch) -> tuple[Array, Array]:
        ref = reference_logps(model, batch, reference, scorer=scorer)
        logps = row_sums(scorer(policy_of(model, reference), batch).logprob)
        return logps, ref if ref.ndim == 1 else row_sums(ref)

    def loss(model: Any, batch: Any, *, key: Any) -> dict[str, Term]:
        del key  # nothing here is random
        whole = whole_rows(batch)
        desirable, valid = _labels(batch)
        logps, ref = map_rows(lambda rows: scores(model, rows), dict(batch), chunks=chunks)
        point, metrics = jnp.zeros(()), {}
        counts = _counted(batch)
        if kind == "kto":
            other = _mismatched(batch)
            valid &= whole_rows(other).all()
            own, base = map_rows(
                lambda rows: no_gradient(scores(model, rows)), other, chunks=chunks
            )
            where = _counted(other)
            total, rows = mean_over(own - base, where)
            point = jnp.maximum(total / jnp.maximum(rows, 1.0), 0.0)
            share = mean_over(where.astype(jnp.float32), counts)
            metrics = {"kl": Metric(point, jnp.ones(())), "kl_rows": Metric(*share)}
        losses = jnp.where(valid & whole, formula(logps, ref, desirable, kl=point), jnp.nan)
        rewards = beta * no_gradient(logps - ref)
        metrics = metrics | _rewards(rewards, desirable, counts, whole_batch=kind == "kto")
        return {kind: mean_over(losses, counts), **metrics}

    return grouped(loss, whole_batch=kind == "kto")


def _rewards(
    rewards: Float[Array, " B"],
    desirable: Bool[Array, " B"],
    counts: Bool[Array, " B"],
    *,
    whole_batch: bool,
) -> dict[str, Metric]:
    """Returns the means of both sides, and of a whole batch their difference."""
    up, down = (mean_over(rewards, counts & side) for side in (desirable, ~desirable))
    metrics = {"reward_desirable": Metric(*up), "reward_undesirable": Metric(*down)}
    if not whole_batch:
        return metrics
    both = ((up[1] > 0) & (down[1] > 0)).astype(jnp.float32)
    means = [total / jnp.maximum(count, 1.0) for total, count in (up, down)]
    return {**metrics, "margin": Metric(both * (means[0] - means[1]), both)}


def _counted(batch: Batch) -> Bool[Array, " B"]:
    return (jnp.asarray(batch["mask"]) > 0).any(axis=1)


def _mismatched(batch: Batch) -> dict[str, Any]:
    if f"{_PREFIX}tokens" not in batch:
        raise ValueError(
            f"kto needs prompts with the answers of other rows, got a batch of {sorted(batch)}; "
            "make them with with_mismatched(batches), or pass kind='apo_zero_unpaired'"
        )
    names = [name for name in batch if name.startswith(_PREFIX)]
    return {name.removeprefix(_PREFIX): batch[name] for name in names}


def _labels(batch: Batch) -> tuple[Bool[Array, " B"], Bool[Array, " B"]]:
    """Returns the labels, and True where they are valid."""
    rows = batch["tokens"].shape[0]
    if "desirable" not in batch:
        if "pair_ids" not in batch:
            raise ValueError(
                f"kto needs labels, got a batch of {sorted(batch)}; add the field desirable, 1 or "
                "0 for each row, or batch with dovetail_data.pairs"
            )
        intact = intact_pairs(batch)
        return jnp.arange(rows) % 2 == 0, jnp.repeat(intact, 2)
    labels = batch["desirable"]
    if labels.shape != (rows,):
        raise ValueError(
            f"desirable must have a label for each of {rows} rows, got desirable of shape "
            f"{list(labels.shape)}; pass 1 or 0 for each row"
        )
    valid = (labels == 0) | (labels == 1)
    if not isinstance(valid, Tracer) and not np.asarray(valid).all():
        i = int(np.flatnonzero(~np.asarray(valid))[0])
        raise ValueError(
            f"desirable must be 1 or 0 (True or False), got {np.asarray(labels)[i]} in row {i}; "
            "pass 1 for a desirable answer and 0 for another"
        )
    return jnp.asarray(labels) == 1, jnp.asarray(valid)
