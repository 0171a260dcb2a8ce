# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The contract of a loss: it returns sums and the counts that divide them, by name."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

#: The result of a loss: (sum, count), two float32 scalars. The mean loss is sum / count.
Term = tuple[Any, Any]
Batch = Mapping[str, Any]  # arrays [rows, ...]
ONE = "loss"  # the name of the only term of a loss that returns no mapping


@runtime_checkable
class DefaultWeight(Protocol):
    """A term with a weight of its own, which holds unless `weights` names the term.

    Any named tuple (sum, count) with a class attribute `default_weight`, such as `Metric`.
    """

    default_weight: float


class Metric(NamedTuple):
    """A term that is measured but not trained: its weight is 0 unless `weights` names it.

    Attributes:
        sum: Sum over the rows, f32[].
        count: Divisor of the sum, f32[].

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_train import Trainer
        >>> def loss(model, batch, *, key):
        ...     error = model(batch["x"]) - batch["y"]
        ...     absolute = Metric(jnp.abs(error).sum(), error.size * 1.0)
        ...     return {"square": ((error**2).sum(), error.size * 1.0), "absolute": absolute}
    """

    sum: Any
    count: Any
    default_weight = 0.0


@runtime_checkable
class Loss(Protocol):
    """A function of model, batch and key that returns a sum of losses and its divisor.

    The gradient is that of Σ sum / Σ count over all rows of a step, whatever the microbatches.

    Args:
        model: The module, with parameters in the compute dtype.
        batch: Arrays [rows, ...] by name; the rows of one microbatch.
        key: Random key of the step, equal for all its microbatches. Noise from the number of a row
            (`jax.random.fold_in(key, batch["id"][i])`) does not depend on accumulation.

    Returns:
        A term (sum, count) of float32 scalars, or a mapping of terms by name. A `Metric` among
        them has no gradient.
    """

    def __call__(self, model: Any, batch: Any, *, key: Any) -> Term | Mapping[str, Term]: ...


@runtime_checkable
class GroupLoss(Loss, Protocol):
    """A loss over groups of consecutive rows, such as the chosen and the rejected answer.

    Rows [k·rows, (k + 1)·rows) of a batch are one group. Microbatches, devices and processes hold
    whole groups. A function becomes one by an attribute: `loss.rows = 2`.
    """

    rows: int


@runtime_checkable
class BatchLoss(Loss, Protocol):
    """A loss that compares all rows of a batch, such as one with in-batch negatives.

    A batch is then never split into microbatches. A function becomes one by an attribute:
    `loss.whole_batch = True`.
    """

    whole_batch: bool


def check_accumulation(loss: Loss, *, accumulate: int) -> None:
    """Raises ValueError if microbatches would split the batch of a `BatchLoss`.

    Args:
        loss: The loss, or a partial of it.
        accumulate: Microbatches per step.
    """
    while isinstance(loss, functools.partial) and not isinstance(loss, BatchLoss):
        loss = loss.func
    if isinstance(loss, BatchLoss) and loss.whole_batch and accumulate > 1:
        raise ValueError(
            f"a loss with whole_batch=True compares all rows of a batch, so accumulate must be 1, "
            f"got accumulate={accumulate}; pass accumulate=1, and save memory inside the loss"
        )


def group_rows(loss: Loss) -> int:
    """Returns the rows of one group of `loss`: 1 unless it has `rows`, or is a partial of such.

    Raises ValueError unless that is a positive int.
    """
    while isinstance(loss, functools.partial) and not isinstance(loss, GroupLoss):
        loss = loss.func
    if not isinstance(loss, GroupLoss):
        return 1
    if isinstance(loss.rows, bool) or not isinstance(loss.rows, int) or loss.rows < 1:
        raise ValueError(
            f"a loss must name a positive number of rows that belong together, got "
            f"loss.rows={loss.rows!r}; write loss.rows = 2 for pairs, or leave it out"
        )
    return loss.rows


def check_loss(loss: Any) -> None:
    """Raises TypeError unless `loss` can be called as loss(model, batch, key=key)."""
    if not callable(loss):
        raise TypeError(
            f"a loss must be a function of (model, batch, *, key), got {loss!r}; pass for example "
            "lm_loss()"
        )
    try:
        signature = inspect.signature(loss)
    except ValueError:  # some compiled functions have none
        return
    try:
        signature.bind(None, None, key=None)
    except TypeError as error:
        name = getattr(loss, "__name__", type(loss).__name__)
        name = name if name.isidentifier() else "loss"
        raise TypeError(
            f"a loss must take (model, batch, *, key), got {name}{signature}; write "
            f"def {name}(model, batch, *, key)"
        ) from error


def terms_of(value: Any) -> dict[str, tuple[Array, Array]]:
    """Checks the result of a loss and returns a mapping of float32 (sum, count)."""
    named = dict(value) if isinstance(value, Mapping) else {ONE: value}
    for name, term in named.items():
        pair = isinstance(term, tuple) and len(term) == 2
        if not pair or any(jnp.shape(scalar) != () for scalar in term):
            came = jax.tree.map(lambda x: f"{jnp.result_type(x)}{list(jnp.shape(x))}", term)
            raise ValueError(
                f"a loss must return scalars (sum, count), or a mapping of such, got "
                f"{name}={came}; write for example "
                f"`return (losses * mask).sum(), mask.sum()`"
            )
    terms = {}
    for name, (total, count) in named.items():
        pair = jnp.asarray(total, jnp.float32), jnp.asarray(count, jnp.float32)
        given = named[name]
        kind: Callable[..., Any] = type(given)  # a named tuple
        terms[name] = kind(*pair) if isinstance(given, DefaultWeight) else pair
    return terms


def mean_loss(
    terms: Mapping[str, Term], counts: Mapping[str, Array], weights: Mapping[str, float]
) -> Float[Array, ""]:
    """Returns Σ wₖ·sumₖ/Nₖ in float32. A term with Nₖ = 0 or weight 0 contributes exactly 0.

    Args:
        terms: (sum, count) by name.
        counts: Counts over the whole batch.
        weights: Factors by name.
    """
    unknown = set(weights) - set(terms)
    if unknown:
        raise ValueError(
            f"weights must name terms that the loss returns, got {', '.join(map(repr, unknown))}; "
            f"use one of {', '.join(sorted(terms))}"
        )
    total = jnp.zeros((), jnp.float32)
    for name, term in terms.items():
        own = term.default_weight if isinstance(term, DefaultWeight) else 1.0
        weight = weights.get(name, own)
        count = counts[name]
        if weight:  # 0·NaN would be NaN
            total += jnp.where(count > 0, weight / jnp.where(count > 0, count, 1.0), 0.0) * term[0]
    return total
