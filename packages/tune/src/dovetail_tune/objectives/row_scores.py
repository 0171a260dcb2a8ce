# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Scores of the rows of a batch of pairs, under a policy and its reference."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dovetail_tune.logps import features, token_logps
from dovetail_tune.reference import Field, Reference, policy_of, reference_logps
from dovetail_tune.rows import row_sums, row_tokens
from dovetail_tune.types import Batch, Scorer


class RowScores(NamedTuple):
    """Scores of each row, f32[B], or pairs of them.

    Attributes:
        policy: Log-probability of the answer, by `length_weight`.
        ref: The same under the reference.
        plain: Log-probability of the answer, without weights.
        tokens: Number of tokens of the answer, at least 1.
        weight: WPO's weight, 1 without.
    """

    policy: Any
    ref: Any
    plain: Any
    tokens: Any
    weight: Any


def score_rows(
    model: Any,
    batch: Batch,
    *,
    reference: Reference,
    scorer: Scorer,
    length_weight: float,
    weighted: bool,
) -> RowScores:
    """Returns the scores of each row of whole pairs.

    Args:
        model: The model to train.
        batch: Arrays [B, ...] by name, rows 2i chosen and 2i + 1 rejected.
        reference: The kind of reference.
        scorer: Scores the targets.
        length_weight: Weight of tokens behind the length of the pair's shorter answer.
        weighted: Also compute WPO's weight.

    Raises:
        ValueError: Reference log-probabilities are of rows, and `length_weight` needs tokens.
    """
    policy = policy_of(model, reference)
    policy = _encoded(policy, batch, scorer) if weighted else policy
    logps = scorer(policy, batch).logprob
    ref = reference_logps(model, batch, reference, scorer=scorer)
    weights = _token_weights(batch, length_weight)
    if ref.ndim == 2:
        ref = row_sums(weights * jnp.where(weights > 0, ref, 0.0))
    elif length_weight != 1:
        name = reference.name if isinstance(reference, Field) else "ref_logps"
        raise ValueError(
            f"length_weight must have reference log-probabilities of each token, got "
            f"length_weight={length_weight} with {name}=f32{list(ref.shape)}; make the field with "
            f"tokens, f32{list(weights.shape)}, or pass reference=Frozen() or AdaptersOff()"
        )
    tokens = row_tokens(batch)
    weight = jnp.ones_like(tokens)
    if weighted:
        tempered = scorer(policy, batch, temperature=0.5).logprob
        weight = _agreement(logps, tempered, tokens)
    return RowScores(row_sums(weights * logps), ref, row_sums(logps), tokens, weight)


def _token_weights(batch: Batch, length_weight: float) -> Float[Array, "B S"]:
    """Returns the mask, with LD-DPO's weight behind the length of the shorter answer."""
    mask = (jnp.asarray(batch["mask"]) > 0).astype(jnp.int32)
    if length_weight == 1:
        return mask.astype(jnp.float32)
    by_pair = mask.reshape(mask.shape[0] // 2, 2, mask.shape[1])
    shared = by_pair.sum(axis=2).min(axis=1)[:, None, None]
    beyond = jnp.cumsum(by_pair, axis=2) > shared
    return mask * jnp.where(beyond, length_weight, 1.0).reshape(mask.shape)


def _agreement(
    logps: Float[Array, "B S"], tempered: Float[Array, "B S"], tokens: Float[Array, " B"]
) -> Float[Array, " B"]:
    """Returns WPO's weight of a row (2406.11827, equation 2), without a gradient.

    It is the geometric mean over tokens of p(token) / sum of p^2. With the logits z, the log of
    that is z + lse(z) - lse(2z): the log-probability at temperature 1/2 less that at 1.
    """
    mean = row_sums(tempered - logps) / tokens
    return jnp.exp(jax.lax.stop_gradient(mean))


class _Encoded:
    """A decoder with the features of one batch. The backbone runs once for several scores."""

    def __init__(self, model: Any, x: Array) -> None:
        self.head = model.head
        self.head_weight = getattr(model, "head_weight", None)  # for `logprobs` alone
        self._x = x

    def features(self, tokens: Any, **options: Any) -> tuple[Array, None]:
        del tokens, options  # those of the batch
        return self._x, None


def _encoded(model: Any, batch: Batch, scorer: Scorer) -> Any:
    """Returns `model`, encoded if the scorer is `token_logps` or a partial of it."""
    bound = functools.partial(scorer)  # flattens
    if bound.func is not token_logps:
        return model
    return _Encoded(model, features(model, batch, attention=bound.keywords.get("attention")))
