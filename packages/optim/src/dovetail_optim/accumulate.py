# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Gradients of several microbatches as one, exactly: their sum over the sum of their counts.

`optax.MultiSteps` takes the mean of means, which weighs a token in a short microbatch more than one
in a long; and what one NaN leaves in its accumulator stays. Here sums begin anew every time.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from dovetail_optim.guard import chosen


class AccumulateState(NamedTuple):
    """sums: of gradients, float32 or wider; total: of counts; microbatches: how many so far."""

    sums: Any
    total: Float[Array, ""]
    microbatches: Int[Array, ""]
    inner: Any


def accumulate(
    tx: optax.GradientTransformation, *, every: int
) -> optax.GradientTransformationExtraArgs:
    """g = (g_1 + ... + g_every) / (n_1 + ... + n_every), which `tx` sees once in `every` updates.

    The gradients are those of sums, as of a loss summed over tokens; `update` takes `count=`, how
    many were summed, a number or a scalar. Between, updates are -0.0, which changes no bit of a
    parameter, and the state of `tx` stays. If the counts add up to 0, `tx` sees nothing: the step
    is left out. Further extra arguments of `update` are those of the last microbatch.

    `accumulate(guard(tx), every=4)` judges whole gradients: a NaN costs its own four microbatches.

    Raises ValueError for `every` below 1, and at `update` without `count`.

        tx = accumulate(optax.adamw(1e-3), every=4)
        updates, state = tx.update(grads_of_sum, state, params, count=mask.sum())
    """
    if every < 1:
        raise ValueError(f"every must be at least 1 microbatch, got every={every}. Use every=1.")
    inner = optax.with_extra_args_support(tx)

    def init(params: Any) -> AccumulateState:
        sums = jax.tree.map(_zeros, params)
        zero = jnp.zeros((), jnp.float32)
        return AccumulateState(sums, zero, jnp.zeros((), jnp.int32), inner.init(params))

    def update(
        updates: Any, state: Any, params: Any = None, *, count: Any = None, **extra: Any
    ) -> tuple[Any, AccumulateState]:
        if count is None:
            raise ValueError(
                "accumulate needs count, how many terms the gradient is a sum of; got none. Use "
                "update(grads, state, params, count=mask.sum())."
            )
        sums = jax.tree.map(lambda s, g: s + g.astype(s.dtype), state.sums, updates)
        total = state.total + jnp.asarray(count, jnp.float32)
        microbatches = state.microbatches + 1

        def step() -> tuple[Any, Any]:
            mean = jax.tree.map(
                lambda s, g: (s / total.astype(s.dtype)).astype(g.dtype), sums, updates
            )
            return inner.update(mean, state.inner, params, **extra)

        full = microbatches == every
        updates, after = chosen(full & (total != 0), step, state.inner)
        sums = jax.tree.map(lambda s: jnp.where(full, jnp.zeros_like(s), s), sums)
        total = jnp.where(full, 0.0, total)
        microbatches = jnp.where(full, 0, microbatches)
        return updates, AccumulateState(sums, total, microbatches, after)

    return optax.GradientTransformationExtraArgs(init, update)


def _zeros(param: Array) -> Array:
    return jnp.zeros(param.shape, jnp.promote_types(param.dtype, jnp.float32))
