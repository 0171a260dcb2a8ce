# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Refused steps: the protocol of a guard, the count of skipped steps, and the end of a bad run.

The trainer refuses a step with a non-finite loss or gradient norm. It has no rule for spikes: a
guard judges the finite steps. A run ends if too many steps are refused, in a row or in all: it
would train on the rest of its data alone, and say nothing.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from dovetail_train.step.metrics import Metrics, first_non_finite, is_finite

_log = logging.getLogger(__name__)
_FEWEST = 10  # skipped steps, for a share of them to be judged
_FEWEST_AT_END = 3  # the same of a whole run, which may be shorter
_AT_END = (
    "the last step of a run must have a finite loss and gradient, got {} (its update was skipped; "
    "the state before it is kept, and saved if there is a store)"
)
_AFTER = "look at that step's batch, or pass a larger steps= to train on after it"


@runtime_checkable
class StepGuard(Protocol):
    """A rule that refuses steps; both methods run under jit. `dovetail_optim.Guard` is one.

    The history is a pytree of arrays. It is part of the trainer's state, so it is saved and
    restored with the run. `judge` must return a history of the same tree, shapes and dtypes.
    """

    def begin(self) -> Any:
        """Returns the history before the first step."""
        ...

    def judge(
        self, history: Any, *, grad_norm: Float[Array, ""], loss: Float[Array, ""]
    ) -> tuple[Bool[Array, ""], Any]:
        """Decides on a step.

        The trainer ignores both results for a non-finite step.

        Args:
            history: Result of `begin`, or of the last finite step.
            grad_norm: Norm of the whole gradient.
            loss: Weighted mean loss of the batch.

        Returns:
            Whether to make the update, and the new history.
        """
        ...


class BadStep(RuntimeError):
    """Ends a run at a step that cannot be right. The attributes help to find the cause.

    Args:
        found: What must hold, and what came; an attribute, for advice in other words.
        advice: What to write instead.
        step: Number of the step.
        scalars: Scalars of the step.
        batch: Its batch, on the devices.
        grad_norms: Gradient norm of each parameter by dotted name; non-finite ones first, then the
            largest.
        skipped: Recent steps without an update, this one included.
    """

    def __init__(
        self,
        found: str,
        advice: str,
        *,
        step: int,
        scalars: Mapping[str, float],
        batch: Mapping[str, Any],
        grad_norms: Mapping[str, float],
        skipped: Sequence[int] = (),
    ) -> None:
        super().__init__(f"{found}; {advice}")
        self.found = found
        self.step, self.scalars, self.skipped = step, dict(scalars), tuple(skipped)
        self.batch, self.grad_norms = dict(batch), dict(grad_norms)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Skips:
    """Counts of skipped steps.

    Attributes:
        total: i32[], skipped steps of the run.
        in_a_row: i32[], skipped steps since the last update.
    """

    total: Any
    in_a_row: Any


def no_skips() -> Skips:
    """Returns the counts before the first step."""
    return Skips(total=jnp.zeros((), jnp.int32), in_a_row=jnp.zeros((), jnp.int32))


def check_guard(guard: Any) -> None:
    """Raises TypeError or ValueError unless `guard` is a `StepGuard`."""
    if guard is None:
        return
    if isinstance(guard, type) or not isinstance(guard, StepGuard):
        name = guard.__name__ if isinstance(guard, type) else type(guard).__name__
        raise TypeError(
            f"guard must be an object with begin() and judge(history, grad_norm=, loss=), got "
            f"{'the class ' if isinstance(guard, type) else ''}{name}; pass for example "
            f"dovetail_optim.Guard(), or guard=None to refuse only steps that are not finite"
        )
    number = jax.ShapeDtypeStruct((), jnp.float32)
    before = jax.eval_shape(guard.begin)
    taken, after = jax.eval_shape(
        lambda history, norm, loss: guard.judge(history, grad_norm=norm, loss=loss),
        before,
        number,
        number,
    )
    if (taken.shape, taken.dtype) != ((), jnp.bool_):
        raise ValueError(
            f"judge of a guard must return bool[] first, got {taken.dtype}{list(taken.shape)}; "
            f"return (taken, history) with a scalar such as loss < limit"
        )
    if _shapes(before) != _shapes(after):
        raise ValueError(
            f"judge of a guard must return a history of the tree, shapes and dtypes that begin "
            f"made, got {_shapes(after)} after {_shapes(before)}; mend {type(guard).__name__}.judge"
        )


def _shapes(tree: Any) -> Any:
    return jax.tree.map(lambda x: f"{x.dtype}{list(x.shape)}", tree)


def judge(
    guard: StepGuard | None,
    history: Any,
    skips: Skips,
    *,
    loss: Float[Array, ""],
    grad_norm: Float[Array, ""],
) -> tuple[Bool[Array, ""], Any, Skips]:
    """Returns whether to make the update, and the new history and counts.

    Args:
        guard: The guard, or None.
        history: Its history.
        skips: Counts of skipped steps.
        loss: Loss of the step.
        grad_norm: Norm of the gradient.
    """
    taken = finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
    if guard is not None:
        accepted, after = guard.judge(history, grad_norm=grad_norm, loss=loss)
        taken = finite & accepted
        history = jax.tree.map(lambda a, b: jnp.where(finite, a, b), after, history)
    skipped = 1 - taken.astype(jnp.int32)
    in_a_row = jnp.where(taken, 0, skips.in_a_row + 1).astype(jnp.int32)
    return taken, history, Skips(total=skips.total + skipped, in_a_row=in_a_row)


@dataclasses.dataclass(kw_only=True)
class Skipped:
    """The skipped steps of a run that are still judged; saved with it.

    Attributes:
        steps: Their numbers.
        ends: Whether the loss or the gradient of the newest step of all is not finite.
    """

    steps: list[int] = dataclasses.field(default_factory=list)
    ends: bool = False

    def get_state(self) -> dict[str, Any]:
        return {"steps": list(self.steps), "ends": self.ends}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.steps, self.ends = list(state["steps"]), state["ends"]


class Verdicts:
    """Looks at the results of a run: ends it at a bad step, and logs every other skipped one.

    Args:
        guard: The trainer's guard.
        max_skips: Skipped steps in a row before the run ends.
        in_a_row: Skipped steps up to the first that is looked at.
        record: Skipped steps of earlier launches. It is kept up to date.
        names: Tree of the parameters, for the names of the gradients.
        params: The model's own arrays, held until step 0 is finite. None for a run that goes on.
    """

    def __init__(
        self,
        guard: StepGuard | None,
        max_skips: int,
        *,
        in_a_row: int,
        record: Skipped,
        names: Any,
        params: Any,
    ) -> None:
        self._guard, self._max_skips, self._in_a_row = guard, max_skips, in_a_row
        self._fewest = max(_FEWEST, max_skips)
        self._record, self._names, self._given = record, names, params
        self._last: BadStep | None = None

    def check(
        self,
        step: int,
        scalars: Mapping[str, float],
        *,
        metrics: Metrics,
        batch: Mapping[str, Any],
        saved: int | None,
    ) -> None:
        """Checks a step whose scalars were read. Logs the reason if it was skipped.

        Args:
            step: Number of the step.
            scalars: Its scalars.
            metrics: Its metrics, on the device.
            batch: Its batch.
            saved: Newest saved step, or None.

        Raises:
            BadStep: The run must end.
        """
        finite = is_finite(scalars)
        judged = [x for x in self._record.steps if x > step - 4 * self._fewest]
        self._record.steps, self._record.ends = judged, not finite
        if scalars.get("skipped", 0.0) == 0 and finite:
            self._in_a_row, self._given, self._last = 0, None, None
            return
        judged.append(step)
        self._in_a_row += 1
        facts = {"step": step, "scalars": scalars, "batch": batch, "skipped": judged}
        facts["grad_norms"] = norms = metrics.gradient_norms(self._names)
        values = f"loss={scalars['loss']:.6g}, grad_norm={scalars['grad_norm']:.6g} at step {step}"
        reason = f"refused by {self._guard}" if finite else "not finite"
        largest = ", ".join(f"{name} {norm:.3g}" for name, norm in list(norms.items())[:3])
        about = f"{values}, {reason}; largest gradients: {largest}"
        kept = "nothing was saved" if saved is None else f"step {saved} is saved"
        if not finite and (step == 0 or not self._max_skips):
            first = self._first_non_finite(step, batch, norms)
            of_batch = first.startswith("batch.")  # no learning rate mends it
            raise BadStep(
                f"the loss and its gradient must be finite, got {values}, first in {first} "
                f"({kept})",
                f"look at that step's batch{'' if of_batch else ', or lower the learning rate'}",
                **facts,
            )
        if too_many := self._too_many(step, f"the last with {about} ({kept})"):
            raise BadStep(*too_many, **facts)
        self._given = None
        self._last = None if finite else BadStep(_AT_END.format(values), _AFTER, **facts)
        _log.warning("skipped an update: %s", about)

    def _too_many(self, step: int, last: str) -> tuple[str, str] | None:
        """Returns what was found, and advice, if too many steps were skipped."""
        skipped, seen = self._record.steps, min(step + 1, 4 * self._fewest)
        other = "lower the learning rate, or pass another guard= or a larger max_skips="
        if self._in_a_row > self._max_skips:
            return (
                f"at most max_skips={self._max_skips} steps in a row may be skipped, got "
                f"{self._in_a_row}, {last}",
                f"look at the batch of this error, {other}",
            )
        if self._fewest <= len(skipped) > max(seen / 4, self._in_a_row):
            return (
                f"at most a quarter of the last {seen} steps may be skipped, got {len(skipped)}, "
                f"{last}",
                f"look at the batches of steps {', '.join(map(str, skipped))}, {other}",
            )
        return None

    def end(self, step: int) -> None:
        """Raises BadStep unless a run has ended well.

        Its last step must be finite, and at most a quarter of its last steps skipped, or two. Not
        all may be: then nothing was trained.

        Args:
            step: Number of updates of the run.
        """
        skipped, seen = self._record.steps, min(step, 4 * self._fewest)
        least = _FEWEST_AT_END if self._max_skips <= _FEWEST else self._max_skips
        too_many = len(skipped) == seen or least <= len(skipped) > seen / 4
        if not self._record.ends and not too_many:
            return
        if self._last is not None:
            raise self._last
        message = _AT_END.format(f"another result at step {step - 1} in an earlier launch")
        advice = _AFTER
        if not self._record.ends:
            message = (
                f"at most a quarter of the last {seen} steps of a run may be skipped, got "
                f"{len(skipped)} (the state after the others is kept, and saved if there is a "
                f"store)"
            )
            advice = (
                f"look at the batches of steps {', '.join(map(str, skipped))}, lower the learning "
                f"rate, pass another guard=, or a larger steps= to train on"
            )
        facts: dict[str, Any] = {"scalars": {}, "batch": {}, "grad_norms": {}}
        raise BadStep(message, advice, step=step - 1, skipped=skipped, **facts)

    def _first_non_finite(
        self, step: int, batch: Mapping[str, Any], norms: Mapping[str, float]
    ) -> str:
        """Returns the name of the first array of the step with a NaN or infinity."""
        name = first_non_finite({"batch": batch})
        if name is None and step == 0:
            name = first_non_finite({"params": self._given})
        return name or f"the gradient of {next(iter(norms))}"
