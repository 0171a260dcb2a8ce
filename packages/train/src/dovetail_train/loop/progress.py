# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The position of a run beside its arrays and its data: seconds, hooks, skipped steps."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from dovetail_train.loop.clock import Clock
from dovetail_train.loop.hooks import Hook, name_of_hook
from dovetail_train.mesh.processes import first, gather
from dovetail_train.step.guard import Skipped
from dovetail_train.store import Stateful


class Progress:
    """The saved state of the clock, of hooks and of the record of skipped steps.

    The processes of a run measure different times, and a hook may count on its own or run on some
    of them. The saved state is that of process 0, equal on all processes: so a run resumes on any
    number of them. `agree` takes it, before each save.

    `pending_hooks` is the number of hooks, the last of those due at the step, that a stop request
    left uncalled.

    Args:
        clock: Clock of the run.
        hooks: All hooks; those with a state are saved.
        skipped: Record of skipped steps.
    """

    def __init__(self, clock: Clock, hooks: Sequence[Hook], skipped: Skipped) -> None:
        self._clock, self._skipped, self.pending_hooks = clock, skipped, 0
        self._hooks = [hook for hook in hooks if isinstance(hook, Stateful)]
        self._names = first([type(hook).__name__ for hook in self._hooks])
        self._agreed: dict[str, Any] | None = None

    def agree(self, measured: Mapping[str, float]) -> dict[str, float]:
        """Takes the state to save, and `measured`, from process 0. A collective.

        Args:
            measured: Scalars of the hooks of this step on this process.

        Returns:
            Those of process 0.
        """
        if jax.process_count() == 1:
            return dict(measured)
        self._agreed, scalars = first([self._state(), dict(measured)])
        return scalars

    def get_state(self) -> dict[str, Any]:
        return self._state() if self._agreed is None else self._agreed

    def _state(self) -> dict[str, Any]:
        hooks = [[type(hook).__name__, hook.get_state()] for hook in self._hooks]
        return {
            "clock": self._clock.get_state(),
            "hooks": hooks,
            "pending_hooks": self.pending_hooks,
            "skipped": self._skipped.get_state(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        saved = [name for name, _ in state["hooks"]]
        if saved != self._names:
            raise ValueError(
                f"a run must be resumed with the hooks whose state it saved, got hooks "
                f"{self._names} where {saved} were saved; pass those hooks, in that order"
            )
        self._clock.set_state(state["clock"])
        self.pending_hooks = state["pending_hooks"]
        if "skipped" in state:  # not in runs of earlier versions
            self._skipped.set_state(state["skipped"])
        own = list(self._hooks)
        for name, value in state["hooks"]:
            indices = [i for i, hook in enumerate(own) if type(hook).__name__ == name][:1]
            for i in indices:  # none where a process has fewer hooks than process 0
                own.pop(i).set_state(value)


class StopsTogether:
    """The agreement of all processes that a hook ends the run.

    It costs a collective for each call of a hook, so the processes must have the same hooks. With
    other hooks on some of them, as for logging, no hook can end the run.

    Attributes:
        are_alike: Whether all processes have the same hooks.
    """

    def __init__(self, hooks: Sequence[Hook]) -> None:
        self.are_alike = True
        if jax.process_count() == 1:
            return
        names = [[name_of_hook(hook), hook.every] for hook in hooks]
        self._every = gather(names)
        self.are_alike = all(others == names for others in self._every)

    def agree(self, ends: bool, hook: Hook) -> bool:
        """Returns True if `hook` ends the run on any process. A collective if all have it.

        Raises RuntimeError if it ends the run, and the processes have other hooks.
        """
        if self.are_alike:
            return any(gather(ends))
        if ends:
            raise RuntimeError(
                "a hook that ends the run must be on every process, got StopRun from "
                f"{name_of_hook(hook)} with the hooks {self._every}; pass the same hooks everywhere"
            )
        return False
