# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The position of a run beside its arrays and its data: seconds, hooks, pending hooks."""

from collections.abc import Sequence
from typing import Any

from dovetail_train.clock import Clock
from dovetail_train.hooks import Hook
from dovetail_train.store import Stateful


class Progress:
    """The saved state of the clock and of hooks.

    `pending_hooks` is the number of hooks, the last of those due at the step, that a stop request
    left uncalled.
    """

    def __init__(self, clock: Clock, hooks: Sequence[Hook]) -> None:
        self._clock, self.pending_hooks = clock, 0
        self._hooks = [hook for hook in hooks if isinstance(hook, Stateful)]

    def get_state(self) -> dict[str, Any]:
        hooks = [[type(hook).__name__, hook.get_state()] for hook in self._hooks]
        return {
            "clock": self._clock.get_state(),
            "hooks": hooks,
            "pending_hooks": self.pending_hooks,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        saved = [name for name, _ in state["hooks"]]
        given = [type(hook).__name__ for hook in self._hooks]
        if saved != given:
            raise ValueError(
                f"a run must be resumed with the hooks whose state it saved, got hooks {given} "
                f"where {saved} were saved; pass those hooks, in that order"
            )
        self._clock.set_state(state["clock"])
        self.pending_hooks = state["pending_hooks"]
        for hook, (_, value) in zip(self._hooks, state["hooks"], strict=True):
            hook.set_state(value)
