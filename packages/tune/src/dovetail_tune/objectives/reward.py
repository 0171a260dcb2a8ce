# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Losses of a `RewardModel`: over pairs, over whole answers, and over the steps of answers.

All read values as logits, so all measure calibration alike. Expected calibration error is no sum
over a count, since it has the absolute value of each bin's gap (1706.04599, equation 3). The gap of
a bin is one, and with the count of all bins the error is the sum of the gaps' absolute values:
exact for any microbatches, and over several steps as well. The Brier score is a mean as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float

from dovetail_tune.chunks import map_rows
from dovetail_tune.losses.reward import binary_cross_entropy, bradley_terry, centering
from dovetail_tune.rows import (
    counted,
    intact_pairs,
    mean_over,
    no_gradient,
    poisoned,
    single_texts,
    split_pairs,
    whole_rows,
)
from dovetail_tune.types import Batch, Loss, Metric, Term, grouped
from dovetail_tune.values import RewardModel

_PAIR = 2  # rows that the trainer keeps together
_BINS = (0.5, 0.6, 0.7, 0.8, 0.9)  # lower edges of the confidence of a decision between two

OutcomeKind = Literal["cross_entropy", "squared"]


def reward_model(
    *,
    margin: str | None = None,
    center: float = 0.0,
    attention: Callable[..., Any] | None = None,
    chunks: int = 1,
) -> Loss:
    """Returns the loss of Bradley and Terry's model over pairs, for a `RewardModel`.

    Rows 2i of the batch are chosen and rows 2i + 1 rejected. A pair without a token that counts
    adds nothing; pairs whose `pair_ids` or margins differ make the loss NaN.

    Terms: "bradley_terry" is -log sigmoid(chosen - rejected - margin), a mean over pairs, and
    "center", where `center` is above 0, that factor times (chosen + rejected)². Metrics: "accuracy"
    (ties count 0), "margin" (chosen - rejected), "reward_chosen", "reward_rejected", "brier"
    ((1 - p)² of the probability p that the chosen answer wins) and "calibration/0.5" to
    "calibration/0.9": of the decisions with a confidence in that bin, the share that is right
    less the mean confidence, times the bin's share of all pairs. The sum of their absolute values
    is the expected calibration error.

    Args:
        margin: Field f32[B] with the margin of each pair, equal in both rows. Default: none.
        center: Factor of the term "center", at least 0 (2312.09244; TRL's
            `center_rewards_coefficient`).
        attention: The decoder's attention. Default: its own.
        chunks: Parts of the rows that are scored one after the other, to save memory.

    Returns:
        A loss over a `RewardModel`.

    Raises:
        ValueError: An option is out of range. When called: a field is missing, or concrete rows
            are no pairs.
        TypeError: When called: the model is no `RewardModel`.

    Example:

        >>> from dovetail_tune import reward_model
        >>> reward_model(margin="margin", center=0.01).rows
        2
    """
    if not 0 <= center < float("inf"):
        raise ValueError(
            f"center must be at least 0 and finite, got center={center}; "
            "write for example center=0.01"
        )

    def loss(model: Any, batch: Batch, *, key: Any) -> dict[str, Term]:
        del key  # nothing here is random
        _whole(batch)
        intact = intact_pairs(batch)
        wanted = _margins(batch, margin)
        scores = split_pairs(_scores(model, batch, attention=attention, chunks=chunks, group=_PAIR))
        losses = poisoned(bradley_terry(*scores, margin=wanted), intact)
        where = counted(batch)
        terms: dict[str, Term] = {"bradley_terry": mean_over(losses, where)}
        if center:
            terms["center"] = mean_over(center * centering(*scores), where)
        chosen, rejected = no_gradient(scores)
        values = {
            "accuracy": (chosen > rejected).astype(chosen.dtype),
            "margin": chosen - rejected,
            "reward_chosen": chosen,
            "reward_rejected": rejected,
        }
        measured = {name: Metric(*mean_over(x, where)) for name, x in values.items()}
        return terms | measured | _calibration(chosen - rejected, jnp.ones_like(chosen), where)

    return grouped(loss, rows=_PAIR)


def outcome_reward(
    *,
    kind: OutcomeKind = "cross_entropy",
    field: str = "reward",
    attention: Callable[..., Any] | None = None,
    chunks: int = 1,
) -> Loss:
    """Returns the loss of the value after each row against a label, for a `RewardModel`.

    Terms: "outcome", a mean over rows with a token that counts (2110.14168, section 4.2, at the
    last token). Metrics: "reward", the mean score; with cross-entropy also "accuracy" (sigmoid
    of the score and label on the same side of 0.5), "brier" and "calibration/...", as
    `reward_model` has them.

    Args:
        kind: "cross_entropy" reads the score as a logit of the label; "squared" is
            (score - label)², and takes any finite label.
        field: Field f32[B] with the labels, in [0, 1] for cross-entropy. Others make the loss NaN.
        attention: The decoder's attention. Default: its own.
        chunks: Parts of the rows that are scored one after the other, to save memory.

    Returns:
        A loss over a `RewardModel`.

    Raises:
        ValueError: `kind` is unknown. When called: the field is missing, or a concrete label is
            out of range.
        TypeError: When called: the model is no `RewardModel`.
    """
    if kind not in get_args(OutcomeKind):
        raise ValueError(
            f"kind must be one of {', '.join(get_args(OutcomeKind))}, got kind={kind!r}; leave it "
            "out for 'cross_entropy'"
        )

    def loss(model: Any, batch: Batch, *, key: Any) -> dict[str, Term]:
        del key  # nothing here is random
        whole = _whole(batch)
        where = (jnp.asarray(batch["mask"]) > 0).any(axis=1)
        bounds = (0.0, 1.0) if kind == "cross_entropy" else None
        labels = _labels(batch, field, where, bounds=bounds)
        scores = poisoned(_scores(model, batch, attention=attention, chunks=chunks), whole)
        score = no_gradient(scores)
        reward = {"reward": Metric(*mean_over(score, where))}
        if kind == "squared":
            return {"outcome": mean_over(jnp.square(scores - labels), where), **reward}
        losses = binary_cross_entropy(scores, labels)
        return {"outcome": mean_over(losses, where), **reward, **_decided(score, labels, where)}

    return loss


def process_reward(
    *,
    labels: str = "step_labels",
    where: str = "step_mask",
    attention: Callable[..., Any] | None = None,
    chunks: int = 1,
) -> Loss:
    """Returns the cross-entropy of the value after each step of an answer, for a `RewardModel`.

    A step ends with a target, as `mask` speaks of targets: its label stands in the slot of the
    target, and the value is read after it. So the last id of a text may end a step.

    Terms: "process", a mean over all steps of the batch (2305.20050, section 2.6). Metrics:
    "reward", "accuracy", "brier" and "calibration/...", as `outcome_reward` has them, over steps.

    Args:
        labels: Field f32[B, S] with the label of each step in [0, 1]. Others make the loss NaN.
        where: Field [B, S] with 1 for the targets that end a step. A step counts if its target
            does, by `mask`.
        attention: The decoder's attention. Default: its own.
        chunks: Parts of the rows that are scored one after the other, to save memory.

    Returns:
        A loss over a `RewardModel`.

    Raises:
        ValueError: When called: a field is missing, or a concrete label is out of range.
        TypeError: When called: the model is no `RewardModel`.
    """

    def loss(model: Any, batch: Batch, *, key: Any) -> dict[str, Term]:
        del key  # nothing here is random
        whole = _whole(batch)
        ends = _steps(batch, where)
        wanted = _labels(batch, labels, ends, bounds=(0.0, 1.0)).reshape(-1)

        def values(part: Batch) -> Array:
            return _checked(model).after_targets(part, attention=attention)

        scores = map_rows(values, _read(batch), chunks=chunks)
        scores = jnp.where(whole[:, None], scores, jnp.nan).reshape(-1)
        ends, score = ends.reshape(-1), no_gradient(scores)
        losses = mean_over(binary_cross_entropy(scores, wanted), ends)
        reward = {"reward": Metric(*mean_over(score, ends))}
        return {"process": losses, **reward, **_decided(score, wanted, ends)}

    return loss


def _scores(
    model: Any,
    batch: Batch,
    *,
    attention: Callable[..., Any] | None,
    chunks: int,
    group: int = 1,
) -> Float[Array, " B"]:
    def scores(part: Batch) -> Array:
        return _checked(model).scores(part, attention=attention)

    return map_rows(scores, _read(batch), chunks=chunks, group=group)


def _checked(model: Any) -> RewardModel:
    if not isinstance(model, RewardModel):
        raise TypeError(
            f"a loss of rewards needs a RewardModel, got {type(model).__name__}; write for example "
            "RewardModel(decoder, nnx.Linear(width, 1, rngs=rngs))"
        )
    return model


def _whole(batch: Batch) -> Bool[Array, " B"]:
    """Returns True for each row that a reward model can value; raises if one is concrete."""
    whole = whole_rows(batch)
    return whole & single_texts(batch)[1]  # here, since ids are not concrete within chunks


def _read(batch: Batch) -> dict[str, Any]:
    """Returns the fields that a score depends on."""
    names = ("tokens", "targets", "segment_ids")
    return {name: batch[name] for name in names if name in batch}


def _margins(batch: Batch, name: str | None) -> Float[Array, " N"]:
    """Returns the margin of each pair; NaN where its rows have two."""
    if name is None:
        return jnp.zeros(batch["tokens"].shape[0] // 2)
    margins = split_pairs(_field(batch, name, batch["tokens"].shape[:1]))
    equal = margins.chosen == margins.rejected
    if not isinstance(equal, Tracer) and not np.asarray(equal).all():
        i = int(np.flatnonzero(~np.asarray(equal))[0])
        raise ValueError(
            f"both rows of a pair must have one margin, got {name}={float(margins.chosen[i]):g} in "
            f"row {2 * i} and {float(margins.rejected[i]):g} in row {2 * i + 1}; repeat each "
            "pair's margin"
        )
    return jnp.where(equal, margins.chosen, jnp.nan)


def _steps(batch: Batch, name: str) -> Bool[Array, "B S"]:
    """Returns True for each target that counts and ends a step."""
    mask = jnp.asarray(batch["mask"]) > 0
    return (_field(batch, name, mask.shape) > 0) & mask


def _labels(
    batch: Batch, name: str, where: Bool[Array, "*n"], *, bounds: tuple[float, float] | None
) -> Float[Array, "*n"]:
    """Returns the labels that count, NaN where one is out of bounds, and 0 for the others."""
    labels = _field(batch, name, where.shape)
    least, most = (-jnp.inf, jnp.inf) if bounds is None else bounds
    good = jnp.isfinite(labels) & (labels >= least) & (labels <= most) | ~where
    if not isinstance(good, Tracer) and not np.asarray(good).all():
        place = tuple(np.argwhere(~np.asarray(good))[0].tolist())
        at = f"row {place[0]}" + "".join(f", slot {slot}" for slot in place[1:])
        kind = "finite" if bounds is None else f"in [{least:g}, {most:g}]"
        raise ValueError(
            f"labels must be {kind}, got {name}={float(labels[place]):g} in {at}; scale them, or "
            "mask it out"
        )
    # Not NaN where nothing counts: it would reach the gradient of the score there.
    return jnp.where(where, jnp.where(good, labels, jnp.nan), 0.0)


def _field(batch: Batch, name: str, shape: tuple[int, ...]) -> Array:
    if name not in batch:
        raise ValueError(
            f"the loss needs the field {name} in the batch, got {sorted(batch)}; add "
            f"{name}=f32{list(shape)}"
        )
    values = jnp.asarray(batch[name])
    if values.shape != shape:
        raise ValueError(
            f"{name} must be f32{list(shape)}, got {name}={values.dtype}{list(values.shape)}; "
            "give one number for each row or slot of tokens"
        )
    return values.astype(jnp.float32)


def _decided(
    logits: Float[Array, " N"], labels: Float[Array, " N"], where: Bool[Array, " N"]
) -> dict[str, Metric]:
    right = ((logits > 0) == (labels > 0.5)).astype(logits.dtype)
    accuracy = Metric(*mean_over(right, where))
    return {"accuracy": accuracy, **_calibration(logits, labels, where)}


def _calibration(
    logits: Float[Array, " N"], labels: Float[Array, " N"], where: Bool[Array, " N"]
) -> dict[str, Metric]:
    """Returns the Brier score, and the gap of each bin of confidence over the count of all."""
    p = jax.nn.sigmoid(logits)
    metrics = {"brier": Metric(*mean_over(jnp.square(p - labels), where))}
    confidence = jax.nn.sigmoid(jnp.abs(logits))
    # Of a tie either decision is right by half.
    right = 0.5 + jnp.sign(logits) * (labels - 0.5)
    for least, most in zip(_BINS, (*_BINS[1:], jnp.inf), strict=True):
        inside = (confidence >= least) & (confidence < most)
        gap = jnp.where(inside, right - confidence, 0.0)
        metrics[f"calibration/{least}"] = Metric(*mean_over(gap, where))
    return metrics
