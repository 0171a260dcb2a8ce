# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""One optimizer step as a pure function: gradients, a verdict on them, and the update.

The update is in a branch (`jax.lax.cond`). A choice between two finished states (`jnp.where`) would
hold both, and would not be inert: 0 times NaN is NaN.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dovetail_train._patterns import name_of
from dovetail_train.guard import StepGuard, judge
from dovetail_train.metrics import Metrics
from dovetail_train.optimizer import make_update
from dovetail_train.rates import learning_rates
from dovetail_train.state import Definition, State
from dovetail_train.step import ONE, Batch, Term, mean_loss, state_like

# Changes a module in place, after an accepted update.
AfterUpdate = Callable[[Any], None]


def check_options(*, accumulate: int, ema: float | None, max_skips: int) -> None:
    """Raises ValueError for an option out of range; see `Trainer`.

    Args:
        accumulate: Microbatches per step.
        ema: Decay of the moving average.
        max_skips: Rejected steps in a row.
    """
    if accumulate < 1:
        raise ValueError(
            f"accumulate must be at least 1, got accumulate={accumulate}; write accumulate=1"
        )
    if ema is not None and not 0 < ema < 1:
        raise ValueError(
            f"ema must lie between 0 and 1, got ema={ema}; write for example ema=0.999, or "
            f"ema=None for no average"
        )
    if max_skips < 0:
        raise ValueError(
            f"max_skips must be at least 0, got max_skips={max_skips}; write max_skips=10, or "
            f"max_skips=0 to end at the first refused step"
        )


def make_change(definition: Definition, after_update: AfterUpdate | None) -> Callable[..., Any]:
    """Returns (params, frozen, rest) -> (params, rest) after `after_update`, as a function.

    Args:
        definition: The module without its arrays.
        after_update: Changes the module. None: nothing does.
    """

    def change(params: Any, frozen: Any, rest: Any) -> tuple[Any, Any]:
        if after_update is None:
            return params, rest
        model = definition.merge(params, frozen, rest)
        returned = after_update(model)
        if returned is not None:
            raise TypeError(
                f"after_update must change the module in place and return None, got "
                f"{type(returned).__name__}; write variable.set_value(...) on its Variables"
            )
        leaves = zip(
            jax.tree.leaves(frozen), jax.tree.leaves(state_like(frozen, model)), strict=True
        )
        if any(before is not after for before, after in leaves):
            raise ValueError(
                "after_update must leave the parameters outside trainable as they are, got "
                "changed ones; write trainable= so that it matches them too"
            )
        return _in_form(params, model), _in_form(rest, model)

    return change


def _in_form(before: Any, model: Any) -> Any:
    """Returns the arrays of `model` at the paths of `before`, after a check of shape and dtype."""

    def checked(path: Any, old: jax.Array, new: jax.Array) -> jax.Array:
        if (old.shape, old.dtype) != (jnp.shape(new), jnp.result_type(new)):
            raise ValueError(
                f"after_update must keep the shape and dtype of a Variable, got {name_of(path)}="
                f"{jnp.result_type(new)}{list(jnp.shape(new))} for {old.dtype}{list(old.shape)}; "
                f"write x.astype({str(old.dtype)!r})"
            )
        return jnp.asarray(new)

    return jax.tree_util.tree_map_with_path(checked, before, state_like(before, model))


def make_step(
    gradients: Callable[..., Any],
    value: Callable[..., Any],
    tx: optax.GradientTransformation,
    *,
    weights: Mapping[str, float],
    seed: int,
    guard: StepGuard | None = None,
    change: Callable[..., Any],
    max_skips: int = 10,
    ema: float | None = None,
) -> Callable[[State, Batch], tuple[State, Metrics]]:
    """Returns (state, batch) -> (state after one update, metrics). The key is fold_in(key(seed),
    step).

    A transformation with extra arguments receives the loss and its gradient of this batch, as
    values and as functions of the parameters; see `make_update`. With max_skips=0 and no guard
    there is no branch: the caller must end at a non-finite step.

    Args:
        gradients: Result of `make_gradients`.
        value: Result of `make_value`.
        tx: Optimizer.
        weights: Factors of the terms.
        seed: Seed of the key.
        guard: Guard, or None.
        change: Result of `make_change`.
        max_skips: Rejected steps in a row before the run ends.
        ema: Decay of the moving average, or None.
    """
    update = make_update(tx)

    def train_step(state: State, batch: Batch) -> tuple[State, Metrics]:
        key = jax.random.fold_in(jax.random.key(seed), state.step)
        grads, terms, rest = gradients(state, batch, key)
        metrics = _measure(terms, grads, batch, weights)
        loss, grad_norm = metrics.scalars["loss"], metrics.scalars["grad_norm"]

        def with_params(params: Any) -> State:
            return dataclasses.replace(state, params=params)

        def updated() -> Any:
            return update(
                grads,
                state.opt,
                state.params,
                value=loss,
                value_fn=lambda params: value(with_params(params), batch, key),
                grad_fn=lambda params: gradients(with_params(params), batch, key)[0],
            )

        def take() -> Any:
            updates, opt = updated()
            params = optax.apply_updates(state.params, updates)
            params, after = change(params, state.frozen, rest)
            return params, after, opt, _averaged(state.ema, params, ema), _norm(updates)

        def leave() -> Any:
            return state.params, state.rest, state.opt, state.ema, jnp.zeros((), jnp.float32)

        scalars, history, skips = dict(metrics.scalars), state.guard, state.skips
        scalars["param_norm"] = _norm(state.params)
        scalars |= learning_rates(tx, state.opt, lambda: updated()[1])
        if guard is None and not max_skips:
            after = take()
        else:
            taken, history, skips = judge(guard, history, skips, loss=loss, grad_norm=grad_norm)
            scalars["skipped"] = 1.0 - taken.astype(jnp.float32)
            after = jax.lax.cond(taken, take, leave)
        params, rest, opt, average, scalars["update_norm"] = after
        trees = {"params": params, "rest": rest, "opt": opt, "ema": average}
        counts = {"step": state.step + 1, "skips": skips, "guard": history}
        done = dataclasses.replace(state, **trees, **counts)
        return done, Metrics(scalars=scalars, grad_norms=metrics.grad_norms)

    return train_step


def _averaged(average: Any, params: Any, decay: float | None) -> Any:
    """Returns decay·average + (1 − decay)·params in float32; bfloat16 would lose so small a
    step.
    """
    if decay is None:
        return average
    return jax.tree.map(
        lambda a, p: a + (1.0 - decay) * (p.astype(jnp.float32) - a), average, params
    )


def _squares(tree: Any) -> list[jax.Array]:
    return [jnp.square(x.astype(jnp.float32)).sum() for x in jax.tree.leaves(tree)]


def _norm(tree: Any) -> jax.Array:
    return jnp.sqrt(sum(_squares(tree), start=jnp.zeros((), jnp.float32)))


def _measure(
    terms: Mapping[str, Term], grads: Any, batch: Batch, weights: Mapping[str, float]
) -> Metrics:
    counts = {name: term[1] for name, term in terms.items()}
    squares = _squares(grads)
    scalars = {
        "loss": mean_loss(terms, counts, weights),
        "grad_norm": jnp.sqrt(sum(squares, start=jnp.zeros((), jnp.float32))),
    }
    if "mask" in batch:
        scalars["tokens"] = (batch["mask"] > 0).sum().astype(jnp.float32)
    for name, (total, n) in terms.items():
        if name == ONE:
            scalars["count"] = n
            continue
        scalars[f"loss/{name}"] = mean_loss({name: (total, n)}, counts, {})
        scalars[f"count/{name}"] = n
    return Metrics(scalars=scalars, grad_norms=jnp.sqrt(jnp.stack(squares)))
