# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The contract of a loss, and the interfaces that a loss takes.

Shape letters: B rows, S tokens of a row, M tokens, D width of the features, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Array, Float, Int

#: Arrays [B, ...] by name, as `dovetail_data` makes them: tokens and targets i32[B, S], mask
#: f32[B, S] with 1 for the targets that count, positions and segment_ids i32[B, S] (0: padding).
Batch = Mapping[str, Any]
#: A sum and the count that divides it, f32[] each. Sums and counts of microbatches are added.
Term = tuple[Any, Any]


class Metric(NamedTuple):
    """A term that is measured and not trained.

    Attributes:
        sum: f32[].
        count: f32[].
    """

    sum: Any
    count: Any
    default_weight = 0.0  # as `dovetail_train.DefaultWeight`


@runtime_checkable
class Loss(Protocol):
    """A loss as `dovetail_train.Trainer` takes it. Every objective of this package returns one.

    Args:
        model: The module to train.
        batch: Arrays [B, ...] by name.
        key: Random key of the step. None where nothing is random.

    Returns:
        A term, or terms by name. The gradient is that of the sum over the terms of sum / count.
        Metrics have none.
    """

    def __call__(self, model: Any, batch: Any, *, key: Any) -> Term | Mapping[str, Term]: ...


def grouped(loss: Loss, *, rows: int | None = None, whole_batch: bool | None = None) -> Any:
    """Returns the loss with the attributes that `dovetail_train.Trainer` reads.

    Args:
        loss: A function.
        rows: Consecutive rows that stay together, as `dovetail_train.GroupLoss`. None: not said.
        whole_batch: The batch is never split, as `dovetail_train.BatchLoss`. None: not said.
    """
    function: Any = loss
    if rows is not None:
        function.rows = rows
    if whole_batch is not None:
        function.whole_batch = whole_batch
    return function


@runtime_checkable
class Decoder(Protocol):
    """A causal language model: every decoder of `dovetail_models`, or any module like these."""

    def features(
        self,
        tokens: Int[Array | np.ndarray, "B S"],
        *,
        positions: Any = ...,
        segment_ids: Any = ...,
    ) -> tuple[Any, ...]:
        """Returns the features [B, S, D] first.

        Args:
            tokens: i32[B, S].
            positions: i32[B, S]; as the batch has them.
            segment_ids: i32[B, S]; as the batch has them. `attention` comes only if a caller of
                `token_logps` passes one.
        """
        ...

    def head(self, x: Float[Array, "*n D"]) -> Float[Array, "*n V"]:
        """Returns logits."""
        ...


class TokenLogps(NamedTuple):
    """Log-probabilities of tokens, in nats.

    Attributes:
        logprob: log p(target) of each token.
        entropy: Entropy of each token's distribution; None unless it was asked for.
    """

    logprob: Float[Array, "..."]
    entropy: Float[Array, "..."] | None


@runtime_checkable
class Logprobs(Protocol):
    """Log-probabilities of a linear head without its logits: `dovetail_kernels.linear_logprobs`."""

    def __call__(
        self,
        x: Float[Array, "M D"],
        w: Float[Array, "D V"],
        labels: Int[Array, " M"],
        *,
        where: Any,
        soft_cap: float | None,
        temperature: float,
    ) -> Any:
        """Returns an object with `logprob` and `entropy`, f32[M]; 0 where `where` is False."""
        ...


#: Scores the targets of a batch: `token_logps`, or `functools.partial(token_logps, ...)`.
#: Called as scorer(model, batch, temperature=1.0, entropy=False).
Scorer = Callable[..., TokenLogps]
