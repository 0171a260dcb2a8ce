# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The data of a run: one batch is fetched ahead, or each is drawn from the newest state.

A batch is fetched and sent to the devices while they compute. There is no thread: a step is
dispatched, not waited for, so the main thread is free to fetch. A saved run must record the
position after the batch of its last step, not after the prefetched one.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import jax

from dovetail_train.store import Stateful


@runtime_checkable
class DrawnData(Protocol):
    """Data made from the newest state, such as rollouts of the policy in training.

    `fit` calls `draw` once for each update, after the results of every earlier update were read and
    its hooks were called, and never ahead. Do not keep `state`: the update donates its buffers. To
    be resumed from a store, the object also has `get_state` and `set_state`.

    Args:
        trainer: The trainer whose `fit` is running.
        state: The state after `step` updates.
        step: Number of updates made so far.

    Returns:
        The batch of the next update.
    """

    def draw(self, trainer: Any, state: Any, step: int) -> Mapping[str, Any]: ...


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
        with jax.profiler.TraceAnnotation("data"):
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


class Draws:
    """Placed batches of a `DrawnData`, saved and resumed as `Prefetch` is."""

    def __init__(self, data: DrawnData, place: Callable[[Mapping[str, Any]], Any]) -> None:
        self._data, self._place = data, place

    def draw(self, trainer: Any, state: Any, step: int) -> Any:
        return self._place(self._data.draw(trainer, state, step))

    def get_state(self) -> Any:
        return self._data.get_state() if isinstance(self._data, Stateful) else None

    def set_state(self, state: Any) -> None:
        if isinstance(self._data, Stateful):
            self._data.set_state(state)


def iterated(data: Iterable[Any] | DrawnData) -> Any:
    """Returns drawn data as they are, and an iterator of other data. TypeError for neither."""
    if isinstance(data, DrawnData):
        return data
    try:
        return iter(data)
    except TypeError as error:
        raise TypeError(
            f"data must be an iterable of batches, or an object with draw(trainer, state, step), "
            f"got {type(data).__name__}; pass for example a list of dicts of arrays"
        ) from error
