# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Hooks: callbacks that `fit` runs every so many steps."""

import enum
from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from dovetail_train.state import State

if TYPE_CHECKING:
    from dovetail_train.trainer import Trainer


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
        Scalars by name. None, as of a function without `return`, is none of them.
    """

    every: int

    def __call__(
        self, trainer: "Trainer", state: State, step: int
    ) -> Mapping[str, float] | None: ...


@runtime_checkable
class InterruptibleHook(Protocol):
    """A long hook that a stop request may interrupt.

    `fit` iterates `run_in_parts`, which returns the scalars, and checks for a stop request after
    every `yield`. After an interruption the checkpoint marks the hook as pending, and the resumed
    run calls pending hooks before its next step. A step is saved once, so a hook can run more than
    once for one step.
    """

    def run_in_parts(
        self, trainer: "Trainer", state: State, step: int
    ) -> Generator[None, None, Mapping[str, float] | None]: ...


@runtime_checkable
class Closable(Protocol):
    """A hook or a sink with open resources: `fit` closes it, however a run ends.

    It must be usable again afterwards.
    """

    def close(self) -> None: ...


class Interruption(enum.Enum):
    """The result of a hook that a stop request has interrupted. No hook returns it."""

    STOPPED = enum.auto()


def result_of(parts: Generator[None, None, Any], *, stopped: Callable[[], bool]) -> Any:
    """Returns the result of `parts`, or `Interruption.STOPPED` if `stopped` is true after a yield.

    Args:
        parts: The running hook.
        stopped: Tests for a stop request.
    """
    while True:
        try:
            next(parts)
        except StopIteration as end:
            return end.value
        if stopped():
            return Interruption.STOPPED


def scalars_of(hook: Any, result: Any) -> Mapping[str, float]:
    """Returns the scalars that a hook has returned, and none for None.

    Args:
        hook: The hook, for the message.
        result: Its result.

    Raises:
        TypeError: The result is no mapping with names.
    """
    if result is None:
        return {}
    if not isinstance(result, Mapping) or not all(isinstance(name, str) for name in result):
        name = getattr(hook, "__name__", type(hook).__name__)
        raise TypeError(
            f"a hook must return scalars by name, or None, got {result!r:.100} from {name}; write "
            "for example return {'accuracy': accuracy}"
        )
    return result
