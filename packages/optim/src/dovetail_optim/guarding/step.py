# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A whole step: parameters, state and gradients in, parameters and state out.

A guard inside a transformation can only return an update of zeros, still added to all parameters.
Here the whole step is one branch, and a skipped one copies nothing. Norms are taken before a
barrier, because otherwise XLA computes gradients twice: for the norm and for the update.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from dovetail_optim.guarding.guard import Guard, History, norm
from dovetail_optim.route import with_extra_args


class StepState(NamedTuple):
    """State of `Step`: the history of its guard, if any, and the state of its transformation."""

    history: History | None
    inner: Any


class Info(NamedTuple):
    """Facts about one step.

    Attributes:
        gradient_norm: Norm of all leaves.
        skipped: Whether the step was skipped.
        reason: Index of `REASONS`; 0 if the step was taken.
    """

    gradient_norm: Float[Array, ""]
    skipped: Bool[Array, ""]
    reason: Int[Array, ""]


class Step:
    """Applies one step of `tx`; with a guard, skips it if it is harmful.

    Call it within `jax.jit`, with parameters and state donated.

    Example:

        >>> import jax, jax.numpy as jnp, optax
        >>> from dovetail_optim import Guard
        >>> step = Step(optax.adamw(1e-3), guard=Guard())
        >>> params = {"w": jnp.ones(3)}
        >>> state, grads = step.init(params), {"w": jnp.ones(3)}
        >>> params, state, info = jax.jit(step)(params, state, grads, loss=2.5)
    """

    def __init__(self, tx: optax.GradientTransformation, *, guard: Guard | None = None):
        self._tx = with_extra_args(tx)
        self._guard = guard

    @jax.transfer_guard("allow")
    def init(self, params: Any) -> StepState:
        """Returns the state before the first step."""
        history = None if self._guard is None else self._guard.begin()
        return StepState(history, self._tx.init(params))

    def __call__(
        self, params: Any, state: StepState, grads: Any, *, loss: Any = None, **extra: Any
    ) -> tuple[Any, StepState, Info]:
        """Returns (params, state, info) after the step.

        Args:
            params: Parameters.
            state: State.
            grads: Gradients.
            loss: Judged by the guard, and passed to `tx` as `value`.
            extra: Passed to `tx`.

        Returns:
            Parameters, state and `info`. Its `gradient_norm`, `skipped` and `reason` are scalars on
            the device. Reasons: 0 none, 1 gradient not finite, 2 loss not finite, 3 spike of the
            gradient norm, 4 spike of the loss.
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
