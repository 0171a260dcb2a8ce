# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Preference losses over pairs with a reference, in the trainer's contract."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Literal

import jax.numpy as jnp

from dovetail_tune import _elsewhere
from dovetail_tune.chunks import map_rows
from dovetail_tune.logps import token_logps
from dovetail_tune.losses.divergence_scores import Divergence
from dovetail_tune.losses.kinds import KINDS, Kind
from dovetail_tune.losses.options import check_name, check_number, check_options
from dovetail_tune.losses.pairwise import pairwise
from dovetail_tune.objectives.pair_terms import nll_term, pair_metrics, pair_term
from dovetail_tune.objectives.row_scores import RowScores, score_rows
from dovetail_tune.reference import Field, Reference
from dovetail_tune.rows import Pair, counted, intact_pairs, mean_over, no_gradient, split_pairs
from dovetail_tune.types import Loss, Metric, Scorer, Term, grouped

_PAIR = 2  # rows that the trainer keeps together
_SFT = "sft"


@_elsewhere.preference
def dpo(
    *,
    beta: float = 0.1,
    kind: Kind | Literal["sft"] | Mapping[str, float] = "sigmoid",
    divergence: Divergence = "reverse_kl",
    alpha: float = 0.5,
    label_smoothing: float = 0.0,
    discopop_tau: float = 0.05,
    length_weight: float = 1.0,
    weighted: bool = False,
    reference: Reference = Field(),  # noqa: B008 - frozen
    scorer: Scorer = token_logps,
    chunks: int = 1,
) -> Loss:
    """Returns the loss of direct preference optimization over pairs of rows, or one of its family.

    Each kind is a term of its name, a mean over pairs; "sft" is one over tokens. The metrics are
    means over pairs: reward_chosen and reward_rejected (beta times the log-ratio to the reference),
    margin, accuracy (a margin of 0 is wrong), logps_chosen, logps_rejected; and kl, the mean
    log-ratio of a row, which estimates a KL divergence only for answers drawn from the policy.

    A pair with an answer of no tokens, such as a filler, adds to no sum and no count. Rows of
    different `pair_ids` make the loss NaN, and a ValueError outside of jax.jit.

    Args:
        beta: Strength of the penalty on distance from the reference; above 0.
        kind: A kind of `losses.pairwise`, or "sft", the negative log-likelihood of the chosen
            answers, or several by name with their factors: {"sigmoid": 0.8, "sft": 0.2}. The kinds
            "aot" and "aot_unpaired" compare all pairs of a batch, so accumulate must be 1.
        divergence: Penalty of the distance; see `losses.pairwise`.
        alpha: Coefficient of "alpha_divergence".
        label_smoothing: Rate of flipped labels, for the kinds sigmoid, robust, exo_pair, aot and
            aot_unpaired. Other kinds beside them have none.
        discopop_tau: Temperature of "discopop".
        length_weight: Weight of tokens behind the length of the pair's shorter answer (LD-DPO,
            2409.06411), for policy and reference; in [0, 1]. It does not change "sft" or the
            divisor of "ipo" and "sigmoid_norm". The metrics have it too.
        weighted: Weigh each pair by the policy's own likelihood of both answers (WPO, 2406.11827,
            equation 2).
        reference: Log-probabilities of the reference.
        scorer: Scores the targets of a batch. `weighted` calls it at temperature 0.5 as well.
        chunks: Parts of the pairs of a batch that are scored one after the other. The backward
            pass computes each again, so it holds the activations of one.

    Returns:
        A loss of rows 2i chosen and 2i + 1 rejected.

    Raises:
        ValueError: An option is out of range, or does not fit the kind.

    Example:

        >>> from dovetail_tune import dpo
        >>> loss = dpo(kind={"sigmoid": 1.0, "sft": 0.2}, label_smoothing=0.1)
        >>> loss.rows, loss.whole_batch
        (2, False)
    """
    kinds = dict(kind) if isinstance(kind, Mapping) else {kind: 1.0}
    _check_kinds(kinds, weighted=weighted, scorer=scorer)
    numbers = {"beta": beta, "alpha": alpha, "discopop_tau": discopop_tau}
    pairs = [name for name in kinds if name != _SFT]
    check_options(pairs, divergence=divergence, label_smoothing=label_smoothing, **numbers)
    rule = "length_weight must be in [0, 1]"
    check_number(0 <= length_weight <= 1, rule, length_weight=length_weight, instead=0.5)
    check_number(chunks >= 1, "chunks must be at least 1", chunks=chunks, instead=1)
    score = functools.partial(
        score_rows,
        reference=reference,
        scorer=scorer,
        length_weight=length_weight,
        weighted=weighted,
    )
    of_pair = functools.partial(pairwise, divergence=divergence, **numbers)

    def loss(model: Any, batch: Any, *, key: Any) -> dict[str, Term]:
        del key  # nothing here is random
        intact, where = intact_pairs(batch), counted(batch)
        rows = map_rows(functools.partial(score, model), batch, chunks=chunks, group=_PAIR)
        scores = RowScores(*map(split_pairs, rows))
        # 0 times the NaN of a pair that does not count would be its gradient.
        scores = scores._replace(ref=Pair(*(jnp.where(where, x, 0.0) for x in scores.ref)))
        terms: dict[str, Term] = {}
        for name, factor in kinds.items():
            rows = {"intact": intact, "where": where, "weight": factor}
            if name == _SFT:
                terms[name] = nll_term(scores.plain.chosen, scores.tokens.chosen, **rows)
                continue
            smoothing = label_smoothing if KINDS[name].smoothing else 0.0
            options = {"label_smoothing": smoothing, "tokens": scores.tokens, "where": where}
            losses = of_pair(*scores.policy, *scores.ref, kind=name, **options)
            terms[name] = pair_term(losses * scores.weight.chosen * scores.weight.rejected, **rows)
        return {**terms, **_metrics(scores, beta, where)}

    whole = any(KINDS[name].whole_batch for name in pairs)
    return grouped(loss, rows=_PAIR, whole_batch=whole)


def _metrics(scores: RowScores, beta: float, where: Any) -> dict[str, Metric]:
    ratio = Pair(*(own - ref for own, ref in zip(scores.policy, scores.ref, strict=True)))
    ratio = no_gradient(ratio)
    rewards = Pair(beta * ratio.chosen, beta * ratio.rejected)
    total, pairs = mean_over(ratio.chosen + ratio.rejected, where)
    return pair_metrics(rewards, scores.policy, where) | {"kl": Metric(total, 2 * pairs)}


def _check_kinds(kinds: Mapping[str, float], *, weighted: bool, scorer: Scorer) -> None:
    if not kinds:
        raise ValueError(
            "kind must name at least one loss, got kind={}; pass for example kind='sigmoid'"
        )
    for name, factor in kinds.items():
        check_name("kind", name, (*KINDS, _SFT))
        rule = f"the factor of kind={name!r} must be above 0 and finite"
        check_number(factor > 0, rule, factor=factor, instead=1.0)
        if weighted and (name == _SFT or KINDS[name].whole_batch):
            raise ValueError(
                f"weighted=True must come with kinds of single pairs, got kind={name!r}; pass "
                "weighted=False, or leave that kind out"
            )
    bound = functools.partial(scorer)
    if weighted and bound.keywords.get("temperature", 1.0) != 1:
        raise ValueError(
            f"weighted=True sets the scorer's temperature, so it must have none, got "
            f"temperature={bound.keywords['temperature']}; pass a scorer without"
        )
