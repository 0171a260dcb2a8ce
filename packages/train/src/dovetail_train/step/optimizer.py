# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Optimizers of a trainer: the arguments of their update, and a check before any step.

A line search evaluates the loss at other parameters, and sharpness-aware minimization its gradient.
Both functions are passed to every transformation with extra arguments, and are traced only if it
calls them: an optimizer that ignores them has the same program as without.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dovetail_train._patterns import name_of

# Of the states of transformations that need something else than a gradient of the parameters.
_REFUSED: Mapping[type, tuple[str, str]] = {
    optax.LookaheadState: (
        "optax.lookahead needs the slow parameters in optax.LookaheadParams, which a model has not",
        "pass its fast optimizer as tx, and Trainer(ema=0.99) for averaged parameters",
    ),
    optax.contrib.DifferentiallyPrivateAggregateState: (
        "differentially private aggregation needs the gradient of each row, and a trainer has "
        "their sum",
        "write a loop with jax.vmap(jax.grad(loss)), or pass tx without it",
    ),
}


def transformation(tx: Any, params: Any) -> optax.GradientTransformation:
    """Returns `tx`, or its result for these parameters.

    Raises TypeError unless that has `init` and `update`.
    """

    def serves(x: Any) -> bool:  # optax.MultiSteps has both, and is no GradientTransformation
        return callable(getattr(x, "init", None)) and callable(getattr(x, "update", None))

    made: Any = tx(params) if callable(tx) and not serves(tx) else tx
    if not serves(made):
        raise TypeError(
            f"tx must be an Optax transformation, or a function from parameters to one, got "
            f"{type(made).__name__}{' from that function' if made is not tx else ''}; write for "
            f"example optax.adamw(1e-3)"
        )
    if isinstance(made, optax.GradientTransformation):
        return made
    return optax.GradientTransformationExtraArgs(made.init, made.update)


def update(
    tx: optax.GradientTransformation,
    grads: Any,
    opt: Any,
    params: Any,
    *,
    value: Any,
    value_fn: Callable[[Any], Any],
    grad_fn: Callable[[Any], Any],
) -> tuple[Any, Any]:
    """Returns (updates, state) of `tx.update` with the extra arguments that it accepts.

    These are of `value`, `grad`, `value_fn`, `grad_fn` and `obj_fn`: `grad` are the gradients, and
    `obj_fn` (Sophia) is `value_fn`.

    Args:
        tx: Optimizer.
        grads: Gradients.
        opt: Its state.
        params: Parameters.
        value: The loss.
        value_fn: The loss, as a function of the parameters.
        grad_fn: Its gradient, likewise.
    """

    # A line search refuses an argument that is not one of its value_fn either.
    def value_at(params: Any, *, grad_fn: Any = None, obj_fn: Any = None) -> Any:
        del grad_fn, obj_fn
        return value_fn(params)

    def grad_at(params: Any, step: Any = None) -> Any:
        del step  # of an inner loop; each has the whole batch
        return grad_fn(params)

    arguments = {"value": value, "grad": grads, "value_fn": value_at}
    arguments |= {"grad_fn": grad_at, "obj_fn": value_at}
    accepted = _accepted(tx, arguments)
    return tx.update(grads, opt, params, **{name: arguments[name] for name in accepted})


def _accepted(tx: optax.GradientTransformation, names: Iterable[str]) -> list[str]:
    """Returns the names of extra arguments that `tx.update` accepts."""
    if not isinstance(tx, optax.GradientTransformationExtraArgs):
        return []
    parameters = inspect.signature(tx.update).parameters
    anything = any(x.kind is x.VAR_KEYWORD for x in parameters.values())
    return [name for name in names if anything or name in parameters]


def check_optimizer(tx: optax.GradientTransformation, params: Any) -> None:
    """Tries `tx` on the shapes of the parameters. Computes nothing.

    Raises:
        TypeError: `tx` raises an error, or needs what a trainer does not have.
        ValueError: The updates or the new state have another tree, shape or dtype.
    """
    before, updates, after = _tried(tx, params)
    if _described(updates) != _described(params):
        raise ValueError(
            f"tx.update must return an update of the shape of each parameter, got "
            f"{_described(updates)} for {_described(params)}; mend the transformation"
        )
    if jax.tree.structure(before) != jax.tree.structure(after):
        raise ValueError(
            f"tx.update must return a state of the tree that tx.init made, got "
            f"{jax.tree.structure(after)} after {jax.tree.structure(before)}; "
            f"mend the transformation"
        )
    leaves = jax.tree_util.tree_leaves_with_path(before)
    for (path, x), y in zip(leaves, jax.tree.leaves(after), strict=True):
        if (x.shape, x.dtype) != (y.shape, y.dtype):
            raise ValueError(
                f"tx must keep the dtype and shape of its state, got {name_of(path)}: "
                f"{x.dtype}{list(x.shape)} becomes {y.dtype}{list(y.shape)}; give the "
                f"transformation a dtype (such as mu_dtype=) or parameters of that dtype"
            )


def _tried(tx: optax.GradientTransformation, params: Any) -> tuple[Any, Any, Any]:
    """Returns the shapes of (state, updates, next state)."""

    def flat(params: Any) -> Any:
        return jnp.zeros((), jnp.float32)

    def tried(params: Any, opt: Any) -> Any:
        grads = jax.tree.map(jnp.zeros_like, params)
        value = flat(params)
        return update(
            tx, grads, opt, params, value=value, value_fn=flat, grad_fn=lambda params: grads
        )

    try:
        before = jax.eval_shape(tx.init, params)
        _refuse(before)
        return before, *jax.eval_shape(tried, params, before)
    except _Refused:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise TypeError(
            f"tx must update the parameters of this model from their gradient and the arguments "
            f"value, grad, value_fn and grad_fn, got {reason}; pass another optimizer, or wrap it "
            f"to need no more than these (optax.contrib.sam takes grad_fn alone: write "
            f"sam(optax.chain(...), ...), not a chain with it)"
        ) from error


class _Refused(TypeError):
    """A transformation that cannot work in a trainer."""


def _refuse(opt: Any) -> None:
    known = tuple(_REFUSED)
    for state in jax.tree.leaves(opt, is_leaf=lambda x: isinstance(x, known)):
        if isinstance(state, known):
            reason, instead = _REFUSED[type(state)]
            raise _Refused(f"{reason}, got tx with {type(state).__name__}; {instead}")


def _described(tree: Any) -> dict[str, list[int]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {name_of(path): list(jnp.shape(x)) for path, x in leaves}
