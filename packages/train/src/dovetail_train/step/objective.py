# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The loss of a step as a function of arrays, and its exact gradient over microbatches.

The gradient is that of Σ wₖ·sumₖ/Nₖ, with each count Nₖ over the whole batch, for any number of
microbatches. A mean of the microbatches' means would weigh a token by the number of others in its
microbatch. So the counts come first, from a pass of their own (XLA removes everything else in it),
and a second pass adds gradients already divided by them.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from dovetail_train.mesh.mesh import split_rows
from dovetail_train.step.options import Options
from dovetail_train.step.state import Definition, State
from dovetail_train.step.terms import Batch, Term, mean_loss, terms_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Objective:
    """The loss of a module without its arrays.

    Attributes:
        definition: The module.
        options: Options of the trainer.
    """

    definition: Definition
    options: Options

    def terms(self, params: Any, frozen: Any, rest: Any, batch: Batch, key: Array) -> Any:
        """Returns (terms, rest) of one microbatch.

        The module's own state (batch statistics, random streams) goes in and comes out as `rest`.

        Args:
            params: Trained parameters.
            frozen: Frozen parameters.
            rest: Other state.
            batch: Arrays [rows, ...] by name.
            key: Key of the step.
        """
        cast = functools.partial(self.options.precision.cast, kept=self.definition.kept)
        model = self.definition.merge(cast(params), cast(frozen), rest)
        terms = terms_of(self.options.loss(model, batch, key=key))
        return terms, state_like(rest, model)

    def mean(self, terms: Mapping[str, Term], counts: Mapping[str, Array] | None = None) -> Array:
        """Returns the mean loss f32[] of the terms. The counts have no gradient.

        Args:
            terms: (sum, count) by name.
            counts: Counts of the whole batch. None: those of the terms.
        """
        own = {name: jax.lax.stop_gradient(n) for name, (_, n) in terms.items()}
        return mean_loss(terms, counts or own, self.options.weights)

    def gradients(self, state: State, batch: Batch, key: Array) -> tuple[Any, Any, Any]:
        """Returns (gradients in the parameters' dtypes, terms, rest) of the whole batch.

        Terms are sums and counts over the whole batch. Gradients are added in float32.

        Args:
            state: The state.
            batch: Arrays [rows, ...] by name.
            key: Key of the step.
        """
        if self.options.accumulate == 1:
            grads, (terms, rest) = self._differentiate(state, state.rest, batch, key)
            return grads, terms, rest
        parts = self._microbatches(batch)

        def count(rest: Any, part: Batch) -> Any:
            terms, rest = self.terms(state.params, state.frozen, rest, part, key)
            return rest, {name: n for name, (_, n) in terms.items()}

        _, counts = jax.lax.scan(count, state.rest, parts)
        counts = jax.tree.map(lambda n: n.sum(0), counts)

        def add(carry: Any, part: Batch) -> Any:
            rest, total = carry
            grads, (terms, rest) = self._differentiate(state, rest, part, key, counts)
            return (rest, jax.tree.map(lambda t, g: t + g.astype(t.dtype), total, grads)), terms

        zeros = jax.tree.map(lambda p: jnp.zeros_like(p, jnp.float32), state.params)
        (rest, grads), terms = jax.lax.scan(add, (state.rest, zeros), parts)
        grads = jax.tree.map(lambda g, p: g.astype(p.dtype), grads, state.params)
        return grads, jax.tree.map(lambda x: x.sum(0), terms), rest

    def value(self, state: State, batch: Batch, key: Array) -> Array:
        """Returns the loss f32[] of the whole batch, differentiable in the parameters.

        Derivatives are forward and backward ones. The backward pass computes each microbatch again,
        so it holds the activations of one.

        Args:
            state: The state.
            batch: Arrays [rows, ...] by name.
            key: Key of the step.
        """
        if self.options.accumulate == 1:
            terms, _ = self.terms(state.params, state.frozen, state.rest, batch, key)
            return self.mean(terms)

        @jax.checkpoint
        def terms_of_part(rest: Any, part: Batch) -> Any:
            terms, rest = self.terms(state.params, state.frozen, rest, part, key)
            return rest, terms

        _, terms = jax.lax.scan(terms_of_part, state.rest, self._microbatches(batch))
        return self.mean(jax.tree.map(lambda x: x.sum(0), terms))

    def loss(self, params: Any, state: State, batch: Batch) -> Array:
        """Returns the loss f32[] of a whole batch at once, at other parameters.

        Args:
            params: Trained parameters.
            state: All other state.
            batch: Arrays [rows, ...] by name.
        """
        state = dataclasses.replace(state, params=params)
        return self._at_once().value(state, batch, jax.random.key(self.options.seed))

    def gradient(self, state: State, batch: Batch) -> Any:
        """Returns the gradient of the loss of a whole batch at once."""
        return self._at_once().gradients(state, batch, jax.random.key(self.options.seed))[0]

    def _at_once(self) -> "Objective":
        """Returns the objective without microbatches."""
        return dataclasses.replace(self, options=dataclasses.replace(self.options, accumulate=1))

    def _differentiate(
        self, state: State, rest: Any, batch: Batch, key: Array, counts: Any = None
    ) -> Any:
        """Returns (gradients, (terms, rest)) of one microbatch."""

        def scalar(params: Any) -> Any:
            terms, after = self.terms(params, state.frozen, rest, batch, key)
            return self.mean(terms, counts), (terms, after)

        return jax.grad(scalar, has_aux=True)(state.params)

    def _microbatches(self, batch: Batch) -> Any:
        """Returns the batch with microbatches along a new first axis."""
        o = self.options
        return split_rows(batch, accumulate=o.accumulate, placement=o.placement, group=o.group)


def state_like(before: Any, model: nnx.Module) -> Any:
    """Returns the arrays of `model` at the paths of `before`, one role of its state."""
    after = nnx.to_pure_dict(nnx.state(model))
    known = {path for path, _ in jax.tree_util.tree_leaves_with_path(before)}
    flat = jax.tree_util.tree_leaves_with_path(after)
    kept = [x for path, x in flat if path in known]
    return jax.tree.unflatten(jax.tree.structure(before), kept)
