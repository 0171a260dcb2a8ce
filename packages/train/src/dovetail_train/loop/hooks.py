# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Hooks: callbacks that `fit` runs every so many steps."""

import enum
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, Literal, Protocol, TypeAlias, TypeGuard, runtime_checkable

from dovetail_train.step.state import State

Trainer: TypeAlias = Any  # `dovetail_train.Trainer`, which imports this module


class StopRun(dict[str, float]):
    """Scalars of a hook that ends the run: `return StopRun({"eval/loss": loss})`.

    `fit` writes the scalars, saves, and returns with `interrupted=True`. The hook has finished, so
    a resumed run does not call it again for this step. With several processes, one of them is
    enough: all end the run at the same step.
    """


@runtime_checkable
class Hook(Protocol):
    """A callback that runs after every `every`-th update and returns scalars.

    `fit` writes the scalars to the sinks under `step`, and saves the finite ones with the step if
    the store takes metrics. Do not keep `state`: the next step donates its buffers. A hook with
    `get_state` and `set_state` (JSON values) is saved with the run.

    Every process calls its hooks, since an evaluation needs all devices. A hook that writes a file
    does so on process 0 alone. The state of the hooks of process 0 is saved.

    Args:
        trainer: The trainer whose `fit` is running.
        state: The state after `step` updates.
        step: Number of updates made so far.

    Returns:
        Scalars by name, a `StopRun` of them to end the run, or None for no scalars.
    """

    every: int

    def __call__(self, trainer: Trainer, state: State, step: int) -> Mapping[str, float] | None: ...


@runtime_checkable
class InterruptibleHook(Protocol):
    """A long hook that a stop request may interrupt.

    `fit` iterates `run_in_parts`, which returns the same as a `Hook`, and checks for a stop request
    after every `yield`. After an interruption the checkpoint marks the hook as pending, and the
    resumed run calls pending hooks before its next step. A step is saved once, so a hook can run
    more than once for one step.
    """

    def run_in_parts(
        self, trainer: Trainer, state: State, step: int
    ) -> Generator[None, None, Mapping[str, float] | None]: ...


@runtime_checkable
class Closable(Protocol):
    """A hook or a sink with open resources: `fit` closes it, however a run ends.

    It must be usable again afterwards.
    """

    def close(self) -> None: ...


class Interrupted(enum.Enum):
    """The result of a hook that a stop request interrupted."""

    INTERRUPTED = enum.auto()


INTERRUPTED = Interrupted.INTERRUPTED


def result_of(
    parts: Generator[None, None, Any], *, stopped: Callable[[], bool]
) -> Any | Literal[Interrupted.INTERRUPTED]:
    """Returns the result of `parts`, or INTERRUPTED if `stopped` is true after a yield."""
    while True:
        try:
            next(parts)
        except StopIteration as end:
            return end.value
        if stopped():
            return INTERRUPTED


def call(
    hook: Hook, trainer: Trainer, state: State, step: int, *, stopped: Callable[[], bool]
) -> Mapping[str, float] | Literal[Interrupted.INTERRUPTED]:
    """Calls a hook.

    Args:
        hook: The hook.
        trainer: See `Hook`.
        state: See `Hook`.
        step: See `Hook`.
        stopped: Whether a stop is requested, for the parts of an `InterruptibleHook`.

    Returns:
        Its scalars as Python floats, in a `StopRun` if the run ends; INTERRUPTED if not finished.

    Raises:
        TypeError: The hook returned something else.
    """
    if runs_in_parts(hook):
        parts = hook.run_in_parts(trainer, state, step)
        if not isinstance(parts, Iterator):
            raise TypeError(
                f"run_in_parts must be a generator, got {name_of_hook(hook)}.run_in_parts "
                f"returning {parts!r:.100}; write `yield` between its parts, or leave it out"
            )
        result = result_of(parts, stopped=stopped)
    else:
        result = hook(trainer, state, step)
    return result if result is INTERRUPTED else _scalars(hook, result)


def runs_in_parts(hook: object) -> TypeGuard[InterruptibleHook]:
    """Returns True if `fit` iterates the parts of a hook.

    A subclass that replaces `__call__` alone, as one of `Eval` may, is called as a whole: the
    parts of its parent would pass over what it adds.
    """
    names = ("run_in_parts", "__call__")
    defined = [name for kind in type(hook).__mro__ for name in names if name in vars(kind)]
    replaced = "run_in_parts" in defined and defined[0] == "__call__"
    return isinstance(hook, InterruptibleHook) and not replaced


def name_of_hook(hook: object) -> str:
    """Returns the name of a function or of a class."""
    return getattr(hook, "__name__", type(hook).__name__)


def _scalars(hook: object, result: Any) -> Mapping[str, float]:
    if result is None:
        return {}
    refusal = (
        "a hook must return scalars by name, StopRun(scalars) to end the run, or nothing, got "
        f"{name_of_hook(hook)} returning {result!r:.100}; write return {{'name': value}}"
    )
    if not isinstance(result, Mapping):
        raise TypeError(refusal)
    if not all(isinstance(name, str) and not isinstance(x, str) for name, x in result.items()):
        raise TypeError(refusal)
    try:
        scalars = {name: float(x) for name, x in result.items()}
    except (TypeError, ValueError) as error:
        raise TypeError(refusal) from error
    return StopRun(scalars) if isinstance(result, StopRun) else scalars
