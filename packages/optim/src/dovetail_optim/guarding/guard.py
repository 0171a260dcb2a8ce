# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Guards: skip a harmful step. Parameters and state keep every bit.

A step is harmful if its gradient or its loss is not finite, or if one of them spikes: the logarithm
of the gradient norm, or the loss, lies far above recent steps. Both are compared with the median
and the median absolute deviation (MAD) of the last accepted steps, because outliers do not move
these. The two signals catch different faults (benchmarks/guards.py): the loss shows corrupted data
better, and only the norm shows a wrong gradient. Mean and deviation of the loss, the usual rule,
missed most faults there, because one accepted spike widens the deviation for a whole window, and
refused every step after a lasting change of level.

`optax.apply_if_finite` applies a NaN after `max_consecutive_errors`. Here no such step is ever
taken, and `halted` reports the failed run. A level that stays high is no spike: after `patience`
spikes in a row the step is accepted, and the statistics start anew.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int

from dovetail_optim import _elsewhere
from dovetail_optim.route import with_extra_args

# 1.4826 MAD is the standard deviation of normal numbers.
_NORMAL = 1.4826
# Lower bounds of the MAD, for runs with hardly any noise. Of a norm's logarithm: with sigma 6, a
# rise of less than 2.4x is no spike. Of a loss, as a share of its median: a rise of less than 18 %.
_LEAST_MAD = 0.1
_LEAST_LOSS_MAD = 0.02
# Accepted steps before the first can be a spike: a median of fewer says little.
_LEAST_STEPS = 16
# Fills the window. Finite, so that jax_debug_nans has nothing to report.
_ABSENT = float(np.finfo(np.float32).max)

REASONS = (
    "",
    "the gradient is not finite",
    "the loss is not finite",
    "the gradient's norm spikes",
    "the loss spikes",
)


class History(NamedTuple):
    """Memory of a guard.

    Attributes:
        log_norms: Logarithms of the gradient norms of the last accepted steps; the largest float32
            in empty places.
        losses: Their losses, likewise.
        accepted: Number of accepted steps in the statistics.
        spikes: Number of spikes in a row.
        failures: Number of non-finite steps in a row.
        skipped: Number of skipped steps in all.
        reason: Verdict on the last step, an index of `REASONS`; 0 if it was taken.
    """

    log_norms: Float[Array, " window"]
    losses: Float[Array, " window"]
    accepted: Int[Array, ""]
    spikes: Int[Array, ""]
    failures: Int[Array, ""]
    skipped: Int[Array, ""]
    reason: Int[Array, ""]


class GuardState(NamedTuple):
    """State of `guard`: the history, and the state of the wrapped transformation."""

    history: History
    inner: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guard:
    """The rule that accepts or skips a step, for `guard`, for `Step`, or for a trainer.

    Args:
        sigma: A step is a spike if the logarithm of its gradient norm, or its loss, is above the
            median by more than this many standard deviations, estimated by the MAD.
        window: Number of accepted steps in the median and the MAD.
        patience: This many spikes in a row are accepted as a new level.
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

    @jax.transfer_guard("allow")
    def begin(self) -> History:
        """Returns the history before the first step."""
        # A separate array for each: one array could not be donated twice.
        empty = (jnp.full(self.window, _ABSENT, jnp.float32) for _ in range(2))
        return History(*empty, *(jnp.zeros((), jnp.int32) for _ in range(5)))

    def judge(
        self,
        history: History,
        *,
        grad_norm: Float[Array, ""],
        loss: Float[Array, ""] | None = None,
    ) -> tuple[Bool[Array, ""], History]:
        """Decides on a step. Runs under jit.

        Args:
            history: Result of `begin` or of the last call.
            grad_norm: Norm of the whole gradient.
            loss: Loss of the step. None: the norm decides alone.

        Returns:
            Whether to take the step, and the new history.
        """
        log_norm = jnp.log(grad_norm.astype(jnp.float32))
        value = jnp.asarray(_ABSENT if loss is None else loss, jnp.float32)
        norm_spikes = log_norm > self._limit(history.log_norms, lambda _: _LEAST_MAD)
        loss_spikes = value > self._limit(history.losses, lambda x: _LEAST_LOSS_MAD * jnp.abs(x))
        loss_spikes &= value < _ABSENT
        spikes = jnp.where(norm_spikes | loss_spikes, history.spikes + 1, 0)
        anew = spikes >= self.patience
        failed = jnp.where(jnp.isfinite(value), 0, 2)
        failed = jnp.where(jnp.isfinite(grad_norm), failed, 1)
        finite = failed == 0
        taken = finite & ((spikes == 0) | anew)

        # A gradient of zero has no logarithm and says nothing of other steps.
        counts = taken & jnp.isfinite(log_norm)
        place = jnp.where(anew, 0, history.accepted)

        def note(values: Array, now: Array) -> Array:
            kept = jnp.where(anew & taken, _ABSENT, values)
            return jnp.where(counts, kept.at[place % self.window].set(now), kept)

        reason = jnp.where(finite, jnp.where(norm_spikes, 3, 4), failed)
        after = History(
            log_norms=note(history.log_norms, log_norm),
            losses=note(history.losses, value),
            accepted=jnp.where(counts, place + 1, history.accepted).astype(jnp.int32),
            # A step that is not finite neither continues a row of spikes nor ends it.
            spikes=jnp.where(finite, jnp.where(taken, 0, spikes), history.spikes).astype(jnp.int32),
            failures=jnp.where(finite, 0, history.failures + 1).astype(jnp.int32),
            skipped=jnp.where(taken, history.skipped, history.skipped + 1).astype(jnp.int32),
            reason=jnp.where(taken, 0, reason).astype(jnp.int32),
        )
        return taken, after

    def _limit(self, values: Array, least_mad: Callable[[Array], Any]) -> Array:
        """Returns the limit above which a value is a spike; infinite with too few values."""
        present = values < _ABSENT
        count = present.sum()
        median = _median(values, count)
        deviations = jnp.where(present, jnp.abs(values - median), _ABSENT)
        mad = jnp.maximum(_median(deviations, count), least_mad(median))
        limit = median + self.sigma * _NORMAL * mad
        return jnp.where(count >= _LEAST_STEPS, limit, jnp.inf)


def _median(values: Array, count: Array) -> Array:
    """Returns the median of the `count` smallest values; meaningless for `count` 0."""
    ordered = jnp.sort(values)
    return 0.5 * ordered[jnp.maximum(count - 1, 0) // 2] + 0.5 * ordered[count // 2]


@_elsewhere.call
def guard(
    tx: optax.GradientTransformation,
    *,
    sigma: float = 6.0,
    window: int = 128,
    patience: int = 8,
) -> optax.GradientTransformationExtraArgs:
    """Skips harmful steps of `tx`. A skipped step changes no bit of parameters or inner state.

    The update of a skipped step is -0.0; added to any parameter, -0.0 included, it keeps all bits.
    `update` takes the loss as `value=`, judges it, and passes it on with all other extra arguments.
    Without it the gradient norm decides alone, and loss spikes are not seen. Check `halted(state)`
    when the loop next waits for the device. Under `jax.vmap` both branches are computed.

    Args:
        tx: Any transformation.
        sigma: See `Guard`.
        window: See `Guard`.
        patience: See `Guard`.

    Raises:
        ValueError: An option is out of range.

    Example:

        >>> import jax.numpy as jnp, optax
        >>> tx = guard(optax.adamw(1e-3))
        >>> params = {"w": jnp.ones(3)}
        >>> updates, state = tx.update(params, tx.init(params), params, value=2.5)
    """
    rule = Guard(sigma=sigma, window=window, patience=patience)
    inner = with_extra_args(tx)

    def init(params: Any) -> GuardState:
        with jax.transfer_guard("allow"):
            return GuardState(rule.begin(), inner.init(params))

    def update(
        updates: Any, state: Any, params: Any = None, *, value: Any = None, **extra: Any
    ) -> tuple[Any, GuardState]:
        given = extra if value is None else {"value": value, **extra}
        loss = None if value is None else jnp.asarray(value)
        taken, history = rule.judge(state.history, grad_norm=norm(updates), loss=loss)
        updates, after = chosen(
            taken, lambda: inner.update(updates, state.inner, params, **given), state.inner
        )
        return updates, GuardState(history, after)

    return optax.GradientTransformationExtraArgs(init, update)


def chosen(taken: Array, step: Callable[[], tuple[Any, Any]], state: Any) -> tuple[Any, Any]:
    """Returns `step()` if taken, else an update without effect and the old state.

    Args:
        taken: Scalar.
        step: Returns updates and state.
        state: The old state.
    """

    def skip() -> tuple[Any, Any]:
        shapes = jax.eval_shape(step)[0]
        return jax.tree.map(lambda u: jnp.full(u.shape, -0.0, u.dtype), shapes), state

    if not isinstance(taken, Tracer):
        # Outside jit every cond of new functions would be compiled anew.
        return step() if taken else skip()
    return jax.lax.cond(taken, step, skip)


def norm(tree: Any) -> Float[Array, ""]:
    """Returns the Euclidean norm of all leaves in float32; inf above 1e19."""
    squares = [jnp.sum(jnp.square(x.astype(jnp.float32))) for x in jax.tree.leaves(tree)]
    return jnp.sqrt(sum(squares, jnp.zeros((), jnp.float32)))


def halted(state: Any, *, patience: int = 8) -> str | None:
    """Returns the reason to stop after `patience` or more non-finite steps in a row, else None.

    Waits for the device.

    Args:
        state: A state with the state of exactly one `guard`, or of a `Step` with a guard.
        patience: Number of steps in a row.

    Raises:
        ValueError: The state has no guard, or several.
    """
    histories = [
        x
        for x in jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, History))
        if isinstance(x, History)
    ]
    if len(histories) != 1:
        raise ValueError(
            f"halted needs a state with one guard, got {len(histories)} in a "
            f"{type(state).__name__}. Use guard(tx), or pass the part of the state that is meant."
        )
    (history,) = histories
    failures = int(history.failures)
    if failures < patience:
        return None
    return (
        f"{REASONS[int(history.reason)]}, for {failures} steps in a row; of all steps "
        f"{int(history.skipped)} were skipped"
    )
