# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A step that would do harm is skipped: nothing changes, as if the batch had not been.

Harm is a gradient or a loss that is not finite, or a gradient whose norm is far above those of the
steps before. Norms are judged by their logarithm, of which the median and the median absolute
deviation (MAD) of the last accepted steps do not feel the outliers that they are to find.

`optax.apply_if_finite` applies a NaN in the end, after as many as it was told to bear; here no such
step is ever taken, and the state tells that the run has come to nothing. A norm that stays high is
no spike but how things are now: after `patience` of them in a row the steps count from there.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int

# 1.4826 MAD is the standard deviation of normal numbers.
_NORMAL = 1.4826
# Below it, norms that hardly differ would make any change a spike: with sigma 6, of less than 2.4x.
_LEAST_MAD = 0.1
# Accepted steps before the first can be a spike: a median of fewer says little.
_LEAST_STEPS = 16

REASONS = ("", "the gradient is not finite", "the loss is not finite", "the gradient's norm spikes")


class History(NamedTuple):
    """What a guard knows of the steps before.

    log_norms: of the last accepted steps, NaN where there are none yet. accepted: how many there
    were. spikes, failures: how many in a row have spiked, and were not finite. skipped: how many in
    all. reason: of the last step, an index of `REASONS`; 0: it was taken.
    """

    log_norms: Float[Array, " window"]
    accepted: Int[Array, ""]
    spikes: Int[Array, ""]
    failures: Int[Array, ""]
    skipped: Int[Array, ""]
    reason: Int[Array, ""]


class GuardState(NamedTuple):
    history: History
    inner: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guard:
    """When to skip a step: `guard` for a transformation, `Step` for a whole step.

    sigma: a norm is a spike if its logarithm is above the median by more than so many standard
    deviations. window: of how many accepted steps. patience: how many spikes in a row are a new
    beginning, and how many steps in a row that are not finite are the end (`halted`).
    """

    sigma: float = 6.0
    window: int = 128
    patience: int = 8

    def __post_init__(self) -> None:
        if not (self.sigma > 0 and math.isfinite(self.sigma)):
            raise ValueError(f"sigma must be positive, got sigma={self.sigma}. Use sigma=6.0.")
        if self.window < _LEAST_STEPS:
            raise ValueError(
                f"window must be at least {_LEAST_STEPS} steps for a median to mean something, got "
                f"window={self.window}. Use window=128."
            )
        if self.patience < 1:
            raise ValueError(
                f"patience must be at least 1 step, got patience={self.patience}. Use patience=8."
            )

    def begin(self) -> History:
        """The history of no steps."""
        # One array for each: the same could not be donated twice.
        counts = (jnp.zeros((), jnp.int32) for _ in range(5))
        return History(jnp.full(self.window, jnp.nan, jnp.float32), *counts)

    def judge(
        self, history: History, norm: Float[Array, ""], value: Float[Array, ""] | None = None
    ) -> tuple[Bool[Array, ""], History]:
        """Whether to take a step of this gradient norm and loss, and the history after it."""
        log_norm = jnp.log(norm.astype(jnp.float32))
        spikes = jnp.where(self._is_spike(history, log_norm), history.spikes + 1, 0)
        anew = spikes >= self.patience
        failed = jnp.where(jnp.isfinite(norm), 0, 1)
        if value is not None:
            failed = jnp.where((failed == 0) & ~jnp.isfinite(value), 2, failed)
        finite = failed == 0
        taken = finite & ((spikes == 0) | anew)
        kept = jnp.where(anew & taken, jnp.nan, history.log_norms)
        count = jnp.where(anew & taken, 0, history.accepted)
        # A gradient of zero has no logarithm, and says nothing of others.
        noted = jnp.where(jnp.isfinite(log_norm), kept.at[count % self.window].set(log_norm), kept)
        more = jnp.where(jnp.isfinite(log_norm), count + 1, count)
        after = History(
            log_norms=jnp.where(taken, noted, history.log_norms),
            accepted=jnp.where(taken, more, history.accepted).astype(jnp.int32),
            # What is not finite neither continues a row of spikes nor ends it.
            spikes=jnp.where(finite, jnp.where(taken, 0, spikes), history.spikes).astype(jnp.int32),
            failures=jnp.where(finite, 0, history.failures + 1).astype(jnp.int32),
            skipped=jnp.where(taken, history.skipped, history.skipped + 1).astype(jnp.int32),
            reason=jnp.where(taken, 0, jnp.where(finite, 3, failed)).astype(jnp.int32),
        )
        return taken, after

    def _is_spike(self, history: History, log_norm: Array) -> Array:
        median = jnp.nanmedian(history.log_norms)
        mad = jnp.nanmedian(jnp.abs(history.log_norms - median))
        limit = median + self.sigma * _NORMAL * jnp.maximum(mad, _LEAST_MAD)
        return (history.accepted >= _LEAST_STEPS) & (log_norm > limit)


def guard(
    tx: optax.GradientTransformation,
    *,
    sigma: float = 6.0,
    window: int = 128,
    patience: int = 8,
) -> optax.GradientTransformationExtraArgs:
    """`tx`, without the steps that would do harm; a skipped step changes no bit of anything else.

    The update of a skipped step is -0.0, which added to any parameter, -0.0 among them, leaves its
    bits. `update` takes `value=`, the loss, if it is to be judged too, and hands it on with all
    other extra arguments. `sigma`, `window` and `patience`: see `Guard`. Ask `halted(state)` when
    the loop next waits for the device. Under `jax.vmap` both ways are computed and one is chosen.

    Raises ValueError for options out of range.

        tx = guard(optax.adamw(1e-3))
        updates, state = tx.update(grads, state, params, value=loss)
    """
    rule = Guard(sigma=sigma, window=window, patience=patience)
    inner = optax.with_extra_args_support(tx)

    def init(params: Any) -> GuardState:
        return GuardState(rule.begin(), inner.init(params))

    def update(
        updates: Any, state: Any, params: Any = None, *, value: Any = None, **extra: Any
    ) -> tuple[Any, GuardState]:
        given = extra if value is None else {"value": value, **extra}
        loss = None if value is None else jnp.asarray(value)
        taken, history = rule.judge(state.history, norm(updates), loss)
        updates, after = chosen(
            taken, lambda: inner.update(updates, state.inner, params, **given), state.inner
        )
        return updates, GuardState(history, after)

    return optax.GradientTransformationExtraArgs(init, update)


def chosen(taken: Array, step: Callable[[], tuple[Any, Any]], state: Any) -> tuple[Any, Any]:
    """`step()`, or an update that changes nothing and the state as it is."""

    def skip() -> tuple[Any, Any]:
        shapes = jax.eval_shape(step)[0]
        return jax.tree.map(lambda u: jnp.full(u.shape, -0.0, u.dtype), shapes), state

    if not isinstance(taken, Tracer):
        # Outside jit every cond of new functions would be compiled anew.
        return step() if taken else skip()
    return jax.lax.cond(taken, step, skip)


def norm(tree: Any) -> Float[Array, ""]:
    """The root of the sum of squares of all leaves, in float32: inf above 1e19."""
    squares = [jnp.sum(jnp.square(x.astype(jnp.float32))) for x in jax.tree.leaves(tree)]
    return jnp.sqrt(sum(squares, jnp.zeros((), jnp.float32)))


def halted(state: Any, *, patience: int = 8) -> str | None:
    """Why there is no use in going on: `patience` or more steps in a row that were not finite.

    state: any that holds one `GuardState` or `History`. It waits for the device.

    Raises ValueError if the state has no guard, or several.
    """
    found = [
        x
        for x in jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, History))
        if isinstance(x, History)
    ]
    if len(found) != 1:
        raise ValueError(
            f"halted needs a state with one guard, got {len(found)} in a {type(state).__name__}. "
            "Use guard(tx), or pass the part of the state that is meant."
        )
    (history,) = found
    failures = int(history.failures)
    if failures < patience:
        return None
    return (
        f"{REASONS[int(history.reason)]}, for {failures} steps in a row; of all steps "
        f"{int(history.skipped)} were skipped"
    )
