# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Update and application as one: parameters, state and gradients in, parameters and state out.

A guard inside a transformation can only return an update of nothing, which is then added to all
parameters; here the whole step is one branch, and a skipped one copies nothing. Norms are taken
before a barrier: else XLA computes gradients twice, once for the norm and once for the update.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from dovetail_optim.guard import Guard, History, norm


class StepState(NamedTuple):
    history: History | None
    inner: Any


class Info(NamedTuple):
    """gradient_norm: of all leaves. skipped: whether nothing was changed; reason: of `REASONS`."""

    gradient_norm: Float[Array, ""]
    skipped: Bool[Array, ""]
    reason: Int[Array, ""]


class Step:
    """One step of `tx`, applied; with a guard, or not at all if it would do harm.

    Call it within `jax.jit`, with parameters and state donated.

        step = Step(optax.adamw(1e-3), guard=Guard())
        state = step.init(params)
        params, state, info = jax.jit(step, donate_argnums=(0, 1))(params, state, grads, loss=loss)
    """

    def __init__(self, tx: optax.GradientTransformation, *, guard: Guard | None = None):
        self._tx = optax.with_extra_args_support(tx)
        self._guard = guard

    def init(self, params: Any) -> StepState:
        """The state before the first step."""
        history = None if self._guard is None else self._guard.begin()
        return StepState(history, self._tx.init(params))

    def __call__(
        self, params: Any, state: StepState, grads: Any, *, loss: Any = None, **extra: Any
    ) -> tuple[Any, StepState, Info]:
        """(params, state, info) after the step.

        loss: judged by the guard, and given to `tx` as `value`; extra: given to `tx`.
        """
        size = norm(grads)
        grads, size = jax.lax.optimization_barrier((grads, size))
        given = extra if loss is None else {"value": loss, **extra}

        def step(params: Any, inner: Any, grads: Any) -> tuple[Any, Any]:
            updates, inner = self._tx.update(grads, inner, params, **given)
            return optax.apply_updates(params, updates), inner

        if self._guard is None or state.history is None:
            params, inner = step(params, state.inner, grads)
            none = jnp.zeros((), jnp.int32)
            return params, StepState(None, inner), Info(size, jnp.zeros((), bool), none)
        value = None if loss is None else jnp.asarray(loss)
        taken, history = self._guard.judge(state.history, grad_norm=size, loss=value)
        params, inner = jax.lax.cond(
            taken, step, lambda params, inner, _: (params, inner), params, state.inner, grads
        )
        return params, StepState(history, inner), Info(size, ~taken, history.reason)
