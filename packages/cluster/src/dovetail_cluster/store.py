# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Durable stores of checkpoints: their protocol, and one whose saves are a phase of the job.

No step completes during a save, and a save of much state takes longer than a step. The deadline of
a step would call it a hang. In a phase it has a deadline of its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

SAVE = "save"  # the phase


@runtime_checkable
class DurableStore(Protocol):
    """A durable store, such as `dovetail_checkpoint.Store`. All ranks make the same calls.

    Items are trees of arrays, or objects with `get_state` and `set_state`. If `save` declares
    `metrics`, it receives the scalars of the step.
    """

    def save(self, step: int, **items: Any) -> None:
        """Saves all items or none, perhaps later. Arrays may be donated when it returns."""
        ...

    def restore(self, **targets: Any) -> tuple[int, dict[str, Any]] | None:
        """Returns the newest good step and its items, or None if nothing was saved."""
        ...

    def peek(self, name: str) -> tuple[int, Any] | None:
        """Returns the newest step and the state of its object `name`, None without that object.

        None if nothing was saved.
        """
        ...

    def wait(self) -> None:
        """Returns when all saves are durable."""
        ...


class SavesInPhase:
    """A store whose `save` and `wait` are the phase "save".

    Args:
        store: The store.
        phase: Opens a phase by its name: `Context.phase`.
    """

    def __init__(
        self, store: DurableStore, phase: Callable[[str], AbstractContextManager[None]]
    ) -> None:
        self._store, self._phase = check(store), phase

    def save(self, step: int, *, metrics: Mapping[str, float] | None = None, **items: Any) -> None:
        """Saves all items or none, perhaps later.

        Args:
            step: Number of the step.
            metrics: Scalars of the step. The store gets them if its `save` declares `metrics`.
            items: Trees of arrays, or objects with `get_state` and `set_state`.
        """
        with self._phase(SAVE):
            save(self._store, step, items, metrics or {})

    def restore(self, **targets: Any) -> tuple[int, dict[str, Any]] | None:
        """Restores the newest good step."""
        return self._store.restore(**targets)

    def peek(self, name: str) -> tuple[int, Any] | None:
        """Reads the state of one object in the newest step."""
        return self._store.peek(name)

    def wait(self) -> None:
        """Waits until all saves are durable."""
        with self._phase(SAVE):
            self._store.wait()


def check(store: object) -> DurableStore:
    """Returns the store. Raises TypeError if it lacks a method."""
    if not isinstance(store, DurableStore):
        raise TypeError(
            f"a store must have save, restore, peek and wait, got {type(store).__name__}; pass "
            f"dovetail_checkpoint.Store(...)"
        )
    return store


def save(
    store: DurableStore, step: int, items: Mapping[str, Any], metrics: Mapping[str, float]
) -> None:
    """Saves the items in a store.

    Args:
        store: The store.
        step: Number of the step.
        items: Items by name.
        metrics: Scalars of the step, for a store whose `save` declares `metrics`.
    """
    takes = "metrics" in inspect.signature(store.save).parameters
    store.save(step, **({"metrics": dict(metrics)} if takes else {}), **items)
