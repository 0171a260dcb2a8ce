# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The contract of a loss, and exact gradients over microbatches as a pure function.

The gradient is that of Σ wₖ·sumₖ/Nₖ, with each count Nₖ over the whole batch, for any number of
microbatches. A mean of the microbatches' means would weigh a token by the number of others in its
microbatch. So the counts come first, from a pass of their own (XLA removes everything else in it),
and a second pass adds gradients already divided by them.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from dovetail_train._patterns import Patterns, each_of, matches, name_of, names_of, select
from dovetail_train.state import Definition, State

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Precision:
    """Dtype of the parameters inside the loss.

    Parameters, gradients and optimizer state keep their dtype (float32 in nearly every run): the
    cast is differentiated, so its transpose returns gradients in it. Batches are not cast, since a
    bfloat16 mask could not count above 256. Variables with the metadata `keep_dtype=True`
    (`nnx.Param(x, keep_dtype=True)`) are not cast either: the model says that rounding them would
    change decisions, as that of a router.

    Args:
        compute: "float32" (no cast) or "bfloat16". float16 would need loss scaling.
        keep: Name patterns of parameters without a cast, such as "**.norm.scale": `*` within a
            segment, `**` for any number of segments.
    """

    compute: Literal["float32", "bfloat16"]
    keep: Patterns = ()

    def __post_init__(self) -> None:
        if self.compute not in ("float32", "bfloat16"):
            raise ValueError(
                f'compute must be "float32" or "bfloat16", got compute={self.compute!r}; '
                f'float16 needs loss scaling, so write Precision(compute="bfloat16")'
            )
        if self.keep != ():
            each_of(self.keep)  # raises for what is no pattern

    def check(self, *trees: Any) -> None:
        """Raises ValueError if a pattern of `keep` matches no parameter of the trees."""
        if self.keep != ():
            select(self.keep, [name for tree in trees for name in names_of(tree)])

    def cast(self, params: Any, *, kept: Collection[str] = ()) -> Any:
        """Casts float parameters to the compute dtype, except those of `keep` and `kept`."""
        if self.compute == "float32":
            return params
        dtype = jnp.dtype(self.compute)

        def leaf(path: tuple[Any, ...], x: jax.Array) -> jax.Array:
            name = name_of(path)
            own = name in kept or (self.keep != () and matches(self.keep, name))
            return x if own or not jnp.issubdtype(x.dtype, jnp.floating) else x.astype(dtype)

        return jax.tree_util.tree_map_with_path(leaf, params)


def make_objective(definition: Definition, loss: Loss, precision: Precision) -> Callable[..., Any]:
    """Returns (params, frozen, rest, batch, key) -> (terms, rest), the loss as a function.

    The module's own state (batch statistics, random streams) goes in and comes out as `rest`.

    Args:
        definition: The module without its arrays.
        loss: The loss.
        precision: Compute dtype.
    """

    def run(params: Any, frozen: Any, rest: Any, batch: Batch, key: Array) -> Any:
        cast = functools.partial(precision.cast, kept=definition.kept)
        model = definition.merge(cast(params), cast(frozen), rest)
        terms = terms_of(loss(model, batch, key=key))
        return terms, state_like(rest, model)

    return run


def state_like(before: Any, model: nnx.Module) -> Any:
    """Returns the arrays of `model` at the paths of `before`, one role of its state."""
    after = nnx.to_pure_dict(nnx.state(model))
    known = {path for path, _ in jax.tree_util.tree_leaves_with_path(before)}
    flat = jax.tree_util.tree_leaves_with_path(after)
    kept = [x for path, x in flat if path in known]
    return jax.tree.unflatten(jax.tree.structure(before), kept)


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


def make_gradients(
    objective: Callable[..., Any], *, weights: Mapping[str, float], accumulate: int, split_rows: Any
) -> Callable[..., Any]:
    """Returns (state, batch, key) -> (gradients in the parameters' dtypes, terms, rest).

    Terms are sums and counts over the whole batch. Gradients are added in float32.

    Args:
        objective: Result of `make_objective`.
        weights: Factors of the terms.
        accumulate: Number of microbatches.
        split_rows: Splits a batch into microbatches along a new first axis.
    """

    def differentiate(params, frozen, rest, batch, key, counts):
        def scalar(params):
            terms, after = objective(params, frozen, rest, batch, key)
            over = {k: jax.lax.stop_gradient(n) for k, (_, n) in terms.items()}
            return mean_loss(terms, counts or over, weights), (terms, after)

        return jax.grad(scalar, has_aux=True)(params)

    def whole(state: State, batch: Batch, key: Array) -> Any:
        grads, (terms, rest) = differentiate(state.params, state.frozen, state.rest, batch, key, {})
        return grads, terms, rest

    def accumulated(state: State, batch: Batch, key: Array) -> Any:
        params, frozen = state.params, state.frozen
        parts = split_rows(batch)

        def count(rest, part):
            terms, rest = objective(params, frozen, rest, part, key)
            return rest, {name: n for name, (_, n) in terms.items()}

        _, counts = jax.lax.scan(count, state.rest, parts)
        counts = jax.tree.map(lambda n: n.sum(0), counts)

        def add(carry, part):
            rest, total = carry
            grads, (terms, rest) = differentiate(params, frozen, rest, part, key, counts)
            return (rest, jax.tree.map(lambda t, g: t + g.astype(t.dtype), total, grads)), terms

        zeros = jax.tree.map(lambda p: jnp.zeros_like(p, jnp.float32), params)
        (rest, grads), terms = jax.lax.scan(add, (state.rest, zeros), parts)
        grads = jax.tree.map(lambda g, p: g.astype(p.dtype), grads, params)
        return grads, jax.tree.map(lambda x: x.sum(0), terms), rest

    return whole if accumulate == 1 else accumulated


def make_value(
    objective: Callable[..., Any], *, weights: Mapping[str, float], accumulate: int, split_rows: Any
) -> Callable[..., Any]:
    """Returns (state, batch, key) -> the loss f32[] of the whole batch.

    Differentiable in the parameters, forward and backward. The backward pass computes each
    microbatch again, so it holds the activations of one. Counts have no gradient.

    Args:
        objective: Result of `make_objective`.
        weights: Factors of the terms.
        accumulate: Number of microbatches.
        split_rows: Splits a batch into microbatches along a new first axis.
    """

    def loss(terms: Mapping[str, Term]) -> Array:
        counts = {name: jax.lax.stop_gradient(n) for name, (_, n) in terms.items()}
        return mean_loss(terms, counts, weights)

    def whole(state: State, batch: Batch, key: Array) -> Array:
        return loss(objective(state.params, state.frozen, state.rest, batch, key)[0])

    def accumulated(state: State, batch: Batch, key: Array) -> Array:
        @jax.checkpoint
        def terms_of_part(rest: Any, part: Batch) -> Any:
            terms, rest = objective(state.params, state.frozen, rest, part, key)
            return rest, terms

        _, terms = jax.lax.scan(terms_of_part, state.rest, split_rows(batch))
        return loss(jax.tree.map(lambda x: x.sum(0), terms))

    return whole if accumulate == 1 else accumulated
