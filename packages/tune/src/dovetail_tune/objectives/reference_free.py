# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Preference losses over pairs without a reference, in the trainer's contract.

A reference costs a forward pass, or one pass over the data beforehand. These losses replace its
penalty by the likelihood of the chosen answers (ORPO, CPO) or by lengths and a margin (SimPO).
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool

from dovetail_tune import _elsewhere
from dovetail_tune.logps import token_logps
from dovetail_tune.losses.divergence_scores import power_score
from dovetail_tune.losses.odds import odds_ratio
from dovetail_tune.losses.options import check_name, check_number, check_options
from dovetail_tune.losses.pairwise import pairwise
from dovetail_tune.losses.target_margin import check_margin, target_margin
from dovetail_tune.objectives.pair_terms import nll_term, pair_metrics, pair_term
from dovetail_tune.rows import Pair, counted, intact_pairs, row_sums, row_tokens, split_pairs
from dovetail_tune.types import Batch, Loss, Scorer, Term, grouped

_PAIR = 2  # rows that the trainer keeps together
_NLL = ("answer", "row")
_CPO_KINDS = ("sigmoid", "hinge", "ipo")


@_elsewhere.reference_free
def orpo(
    *, beta: float = 0.1, nll: Literal["answer", "row"] = "answer", scorer: Scorer = token_logps
) -> Loss:
    """Returns ORPO's loss: likelihood of the chosen answer plus its odds ratio (2403.07691).

    The term "nll" is a mean over tokens, "odds_ratio" one over pairs, already times beta (equation
    6, with lambda for beta). Metrics as of `dpo`, with beta times the mean log-probability of an
    answer's tokens as the reward, and no kl.

    Args:
        beta: Weight of the odds ratio; above 0.
        nll: "answer": likelihood of the chosen answers, as in the paper. "row": of their prompts
            too, as TRL has it.
        scorer: Scores the targets of a batch.

    Returns:
        A loss of rows 2i chosen and 2i + 1 rejected.

    Raises:
        ValueError: An option is out of range.
    """
    check_number(beta > 0, "beta must be above 0 and finite", beta=beta, instead=0.1)
    check_name("nll", nll, _NLL)

    def loss(model: Any, batch: Any, *, key: Any) -> dict[str, Term]:
        del key  # nothing here is random
        answers = _answers(model, batch, scorer, whole_rows=nll == "row")
        mean = answers.mean
        ratio = answers.term(odds_ratio(*mean), weight=beta)
        rewards = Pair(beta * mean.chosen, beta * mean.rejected)
        return {"odds_ratio": ratio, "nll": answers.nll(1.0)} | answers.metrics(rewards)

    return grouped(loss, rows=_PAIR)


@_elsewhere.reference_free
def simpo(
    *, beta: float = 2.0, gamma: float = 1.0, alpha: float = 0.0, scorer: Scorer = token_logps
) -> Loss:
    """Returns SimPO's loss (2405.14734, equation 6), or with `alpha` AlphaPO's (2501.03884).

    The term is "simpo", a mean over pairs. Metrics as of `dpo`, with beta times the mean
    log-probability of an answer's tokens as the reward, and no kl.

    Args:
        beta: Scale of the rewards; above 0.
        gamma: Margin between the rewards of both answers; at least 0.
        alpha: AlphaPO's shape of the reward. 0 for SimPO.
        scorer: Scores the targets of a batch.

    Returns:
        A loss of rows 2i chosen and 2i + 1 rejected.

    Raises:
        ValueError: An option is out of range.
    """
    check_margin(beta=beta, gamma=gamma, alpha=alpha)

    def loss(model: Any, batch: Any, *, key: Any) -> dict[str, Term]:
        del key  # nothing here is random
        answers = _answers(model, batch, scorer)
        mean = answers.mean
        losses = target_margin(*mean, beta=beta, gamma=gamma, alpha=alpha)
        rewards = Pair(*(beta * power_score(x, -alpha) for x in mean))
        return {"simpo": answers.term(losses)} | answers.metrics(rewards)

    return grouped(loss, rows=_PAIR)


@_elsewhere.reference_free
def cpo(
    *,
    beta: float = 0.1,
    kind: Literal["sigmoid", "hinge", "ipo"] = "sigmoid",
    label_smoothing: float = 0.0,
    nll_weight: float = 1.0,
    scorer: Scorer = token_logps,
) -> Loss:
    """Returns CPO's loss: DPO's with a uniform reference, plus likelihood (2401.08417).

    The term of the kind's name is a mean over pairs, "nll" one over the tokens of chosen answers.
    Metrics as of `dpo`, with beta times the log-probability as the reward, and no kl.

    Args:
        beta: Scale of the rewards; above 0.
        kind: As in `losses.pairwise`; "ipo" divides by the number of tokens.
        label_smoothing: Rate of flipped labels in [0, 0.5), for "sigmoid".
        nll_weight: Factor of the likelihood; 0 for no such term.
        scorer: Scores the targets of a batch.

    Returns:
        A loss of rows 2i chosen and 2i + 1 rejected.

    Raises:
        ValueError: An option is out of range.
    """
    check_name("kind", kind, _CPO_KINDS)
    check_options([kind], beta=beta, label_smoothing=label_smoothing)
    rule = "nll_weight must be at least 0 and finite"
    check_number(nll_weight >= 0, rule, nll_weight=nll_weight, instead=1.0)

    def loss(model: Any, batch: Any, *, key: Any) -> dict[str, Term]:
        del key  # nothing here is random
        answers = _answers(model, batch, scorer)
        uniform = jnp.zeros_like(answers.logps.chosen)
        losses = pairwise(
            *answers.logps,
            uniform,
            uniform,
            beta=beta,
            kind=kind,
            label_smoothing=label_smoothing,
            tokens=answers.tokens,
        )
        rewarded = answers.mean if kind == "ipo" else answers.logps
        terms = {kind: answers.term(losses)} | answers.metrics(Pair(*(beta * x for x in rewarded)))
        return terms | {"nll": answers.nll(nll_weight)} if nll_weight else terms

    return grouped(loss, rows=_PAIR)


class _Answers(NamedTuple):
    """Log-probabilities and token counts of the answers of N pairs, and of their likelihood."""

    logps: Pair
    tokens: Pair
    likelihood: Array  # of each chosen answer, or of its row
    length: Array  # tokens of those
    intact: Bool[Array, " N"]
    where: Bool[Array, " N"]

    @property
    def mean(self) -> Pair:
        return Pair(*(x / n for x, n in zip(self.logps, self.tokens, strict=True)))

    def term(self, losses: Array, *, weight: float = 1.0) -> Term:
        return pair_term(losses, intact=self.intact, where=self.where, weight=weight)

    def nll(self, weight: float) -> Term:
        rows = {"intact": self.intact, "where": self.where}
        return nll_term(self.likelihood, self.length, weight=weight, **rows)

    def metrics(self, rewards: Pair) -> dict[str, Any]:
        return pair_metrics(rewards, self.logps, self.where)


def _answers(model: Any, batch: Batch, scorer: Scorer, *, whole_rows: bool = False) -> _Answers:
    intact, where = intact_pairs(batch), counted(batch)
    scored = {**batch, "mask": _row_mask(batch)} if whole_rows else batch
    logprob = scorer(model, scored).logprob
    answer = jnp.asarray(batch["mask"]) > 0
    logps = split_pairs(row_sums(jnp.where(answer, logprob, 0.0)))
    likelihood = split_pairs(row_sums(logprob)).chosen
    tokens, length = split_pairs(row_tokens(batch)), split_pairs(row_tokens(scored)).chosen
    return _Answers(logps, tokens, likelihood, length, intact, where)


def _row_mask(batch: Batch) -> Array:
    """Returns the mask of all targets of a row, from its first to the last of its answer."""
    answer = jnp.asarray(batch["mask"]) > 0
    upto = jnp.flip(jnp.cumsum(jnp.flip(answer, axis=1), axis=1), axis=1) > 0
    if "segment_ids" in batch:
        upto &= jnp.asarray(batch["segment_ids"]) > 0
    return upto.astype(jnp.float32)
