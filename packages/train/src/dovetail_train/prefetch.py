# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Prefetching one batch: it is fetched and sent to the devices while they compute.

There is no thread. A step is dispatched, not waited for, so the main thread is free to fetch. A
saved run must record the position after the batch of its last step, not after the prefetched one.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Stateful(Protocol):
    """An object with a position that can be saved as JSON and restored."""

    def get_state(self) -> Any: ...
    def set_state(self, state: Any) -> None: ...


class Prefetch:
    """An iterator of placed batches that can fetch one ahead.

    `get_state` is the state of `data` after the batch last returned by `next`.
    """

    def __init__(
        self, data: Iterator[Mapping[str, Any]], place: Callable[[Mapping[str, Any]], Any]
    ) -> None:
        self._data, self._place = data, place
        self._stateful = data if isinstance(data, Stateful) else None
        self._ahead: list[Any] = []  # at most one batch
        self._state = self._position()

    def _position(self) -> Any:
        return None if self._stateful is None else self._stateful.get_state()

    def fill(self) -> None:
        """Fetches a batch, unless one is waiting or the data has ended."""
        if self._ahead:
            return
        for batch in self._data:
            self._ahead.append(self._place(batch))
            return

    def __iter__(self) -> "Prefetch":
        return self

    def __next__(self) -> Any:
        self.fill()
        if not self._ahead:
            raise StopIteration
        self._state = self._position()  # of this batch: the next is not fetched before
        return self._ahead.pop()

    def get_state(self) -> Any:
        return self._state

    def set_state(self, state: Any) -> None:
        if self._stateful is None:
            raise RuntimeError(
                f"data must have set_state to resume, got {type(self._data).__name__}; "
                f"pass an iterator with get_state and set_state"
            )
        self._stateful.set_state(state)
        self._ahead, self._state = [], state
