# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What the training loop calls every so many steps."""

from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from dovetail_train.state import State

if TYPE_CHECKING:
    from dovetail_train.trainer import Trainer


@runtime_checkable
class Hook(Protocol):
    """Called after every `every`-th update, with the number of updates made; returns scalars.

    The scalars go to the sinks under that number. The state must not be kept: the next step
    donates it. A hook that also has get_state and set_state (JSON) is saved with the run.
    """

    every: int

    def __call__(self, trainer: "Trainer", state: State, step: int) -> Mapping[str, float]: ...


@runtime_checkable
class Divided(Protocol):
    """A hook that takes long: `fit` calls `parts` instead, and asks its `stop` at every yield.

    `parts` returns what the hook would. Where it is given up, the run is saved as it was before
    the hook, and the run that goes on from there calls the hook first of all. A step is saved
    once: stopped again before the next, or started again at its end, a run calls it once more.
    """

    def parts(
        self, trainer: "Trainer", state: State, step: int
    ) -> Generator[None, None, Mapping[str, float]]: ...


@runtime_checkable
class Closable(Protocol):
    """A hook or a sink that holds something open: `fit` closes it, however a run ends.

    It must be usable again afterwards.
    """

    def close(self) -> None: ...


def result_of(
    parts: Generator[None, None, Mapping[str, float]], *, stopped: Callable[[], bool]
) -> Mapping[str, float] | None:
    """What `parts` returns; None if `stopped` says so at a yield."""
    while True:
        try:
            next(parts)
        except StopIteration as end:
            return end.value
        if stopped():
            return None
