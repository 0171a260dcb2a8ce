# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""One optimizer step as a pure function: gradients, a verdict on them, and the update.

The update is in a branch (`jax.lax.cond`). A choice between two finished states (`jnp.where`) would
hold both, and would not be inert: 0 times NaN is NaN.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from dovetail_train._patterns import name_of
from dovetail_train.step.checks import check_model
from dovetail_train.step.guard import judge
from dovetail_train.step.metrics import Metrics
from dovetail_train.step.objective import Objective, state_like
from dovetail_train.step.optimizer import update
from dovetail_train.step.options import Options
from dovetail_train.step.rates import learning_rates
from dovetail_train.step.state import Arrays, Definition, Extras, State, split
from dovetail_train.step.terms import ONE, Batch, Term, mean_loss


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainStep:
    """The step (state, batch) -> (state after one update, metrics) of one model.

    The key is fold_in(key(seed), step). A transformation with extra arguments receives the loss and
    its gradient of this batch, as values and as functions of the parameters; see
    `step.optimizer.update`. With max_skips=0 and no guard there is no branch: the caller must end
    at a non-finite step.

    Attributes:
        definition: The module without its arrays.
        options: Options of the trainer.
    """

    definition: Definition
    options: Options

    @classmethod
    @jax.transfer_guard("allow")  # the user's guard is for the steps of training
    def of(cls, model: nnx.Module, options: Options) -> "tuple[TrainStep, Arrays]":
        """Returns the step of a model, and the arrays of the model. Raises as `state.split`."""
        check_model(model)
        definition, arrays = split(
            model,
            options.tx,
            trainable=options.trainable,
            mesh=options.mesh,
            shard_opt=options.opt_shardings,
            extras=Extras(ema=options.ema is not None, guard=options.guard),
        )
        options.precision.check(arrays.params, arrays.frozen)
        return cls(definition=definition, options=options), arrays

    def __call__(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        """Runs the compiled step. Donates `state`."""
        return self.compiled(state, batch)

    @functools.cached_property
    def compiled(self) -> Any:
        """`jax.jit` of `train_step`. It compiles at its first call with each shape of a batch."""
        placement = self.options.placement
        return jax.jit(
            self.train_step,
            donate_argnums=0,
            in_shardings=(None, placement.rows if placement.tokens == 1 else None),
            out_shardings=self.out_shardings,
        )

    @property
    def out_shardings(self) -> tuple[State, NamedSharding]:
        """Shardings of the results."""
        return self.definition.shardings, NamedSharding(self.options.mesh, PartitionSpec())

    @property
    def objective(self) -> Objective:
        """The loss and its gradient."""
        return Objective(definition=self.definition, options=self.options)

    def train_step(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        """The step as a pure function; its name is that of the compiled program.

        Raises ValueError, while it is traced, for the state of another model.
        """
        self._check(state)
        options, objective, tx = self.options, self.objective, self.definition.tx
        key = jax.random.fold_in(jax.random.key(options.seed), state.step)
        grads, terms, rest = objective.gradients(state, batch, key)
        metrics = _measure(terms, grads, batch, options.weights)
        loss, grad_norm = metrics.scalars["loss"], metrics.scalars["grad_norm"]

        def with_params(params: Any) -> State:
            return dataclasses.replace(state, params=params)

        def updated() -> Any:
            return update(
                tx,
                grads,
                state.opt,
                state.params,
                value=loss,
                value_fn=lambda params: objective.value(with_params(params), batch, key),
                grad_fn=lambda params: objective.gradients(with_params(params), batch, key)[0],
            )

        def take() -> Any:
            updates, opt = updated()
            params = optax.apply_updates(state.params, updates)
            params, after = self._after_update(params, state.frozen, rest)
            average = _averaged(state.ema, params, options.ema)
            return params, after, opt, average, _norm(updates)

        def leave() -> Any:
            return state.params, state.rest, state.opt, state.ema, jnp.zeros((), jnp.float32)

        scalars, history, skips = dict(metrics.scalars), state.guard, state.skips
        scalars["param_norm"] = _norm(state.params)
        scalars |= learning_rates(tx, state.opt, lambda: updated()[1])
        if options.guard is None and not options.max_skips:
            with jax.named_scope("optimizer"):
                after = take()
        else:
            taken, history, skips = judge(
                options.guard, history, skips, loss=loss, grad_norm=grad_norm
            )
            scalars["skipped"] = 1.0 - taken.astype(jnp.float32)
            with jax.named_scope("optimizer"):
                after = jax.lax.cond(taken, take, leave)
        params, rest, opt, average, scalars["update_norm"] = after
        trees = {"params": params, "rest": rest, "opt": opt, "ema": average}
        counts = {"step": state.step + 1, "skips": skips, "guard": history}
        done = dataclasses.replace(state, **trees, **counts)
        return done, Metrics(scalars=scalars, grad_norms=metrics.grad_norms)

    def _check(self, state: State) -> None:
        like = self.definition.shardings
        if jax.tree.structure(state) != jax.tree.structure(like):
            raise ValueError(
                f"state must be of the model that init was called with last, got a tree of "
                f"{len(jax.tree.leaves(state))} leaves where it has {len(jax.tree.leaves(like))} "
                f"(or other names); call init(model) again"
            )

    def _after_update(self, params: Any, frozen: Any, rest: Any) -> tuple[Any, Any]:
        """Returns (params, rest) after the function `after_update` of the user."""
        if self.options.after_update is None:
            return params, rest
        model = self.definition.merge(params, frozen, rest)
        returned: Any = self.options.after_update(model)
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


@jax.named_scope("metrics")
def _norm(tree: Any) -> jax.Array:
    return jnp.sqrt(sum(_squares(tree), start=jnp.zeros((), jnp.float32)))


@jax.named_scope("metrics")
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
