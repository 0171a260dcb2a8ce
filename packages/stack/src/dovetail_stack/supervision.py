# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The job on many hosts around a launch: its stop, its progress, and its names for work."""

import contextlib
import dataclasses
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from dovetail_cluster import Context
from dovetail_train import Hook
from dovetail_train.loop.hooks import Closable, runs_in_parts
from dovetail_train.store import Stateful


@dataclasses.dataclass(frozen=True)
class Supervision:
    """The job on many hosts to which a process belongs.

    Attributes:
        context: The rank: its `stop` and its progress.
        phase_s: Deadline of work without steps, in seconds.
    """

    context: Context
    phase_s: float

    def phase(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Names work without steps in a report on a stuck job, and gives its deadline."""
        return self.context.phase(name, stall_s=self.phase_s)

    def in_phases(self, hooks: Sequence[Hook]) -> list[Hook]:
        """Returns the hooks, each call of them in a phase. Those with a state stay as they are."""
        return [hook if isinstance(hook, Stateful) else _InPhase(hook, self) for hook in hooks]


class _InPhase:
    """A hook in a phase that has the name of its class."""

    def __init__(self, hook: Any, supervision: Supervision) -> None:
        self.every: int = hook.every
        self.__name__: str = getattr(hook, "__name__", type(hook).__name__)  # for its errors
        self._hook, self._supervision = hook, supervision

    def __call__(self, trainer: Any, state: Any, step: int) -> Mapping[str, float] | None:
        with self._supervision.phase(type(self._hook).__name__):
            return self._hook(trainer, state, step)

    def run_in_parts(
        self, trainer: Any, state: Any, step: int
    ) -> Generator[None, None, Mapping[str, float] | None]:
        if not runs_in_parts(self._hook):
            return self(trainer, state, step)
        with self._supervision.phase(type(self._hook).__name__):
            return (yield from self._hook.run_in_parts(trainer, state, step))

    def close(self) -> None:
        if isinstance(self._hook, Closable):
            self._hook.close()
