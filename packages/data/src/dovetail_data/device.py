# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Batches on devices, ahead of their use."""

import collections
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

import grain
import numpy as np

from dovetail_data.stats import Meter, Stats

if TYPE_CHECKING:
    import jax


class BatchIterator(Protocol):
    """What `to_device` needs: an iterator of dicts of arrays whose state can be set."""

    def __next__(self) -> Mapping[str, np.ndarray]: ...
    def get_state(self) -> dict[str, Any]: ...
    def set_state(self, state: dict[str, Any]) -> None: ...


def to_device(
    it: BatchIterator, sharding: "jax.sharding.Sharding", *, depth: int = 2
) -> "DeviceBatches":
    """The batches of `it` as dicts of global jax.Array, each array laid out by `sharding`.

    This host's arrays are its part of the global ones. One thread reads and sends up to `depth`
    batches ahead. get_state is the state after the batch that was delivered last, not after those
    read ahead. `it` belongs to the result from then on. Needs the extra `device`.
    """
    if depth < 1:
        raise ValueError(f"depth must be >= 1: got depth={depth}. Pass 2 to overlap with a step.")
    return DeviceBatches(it, sharding, depth=depth)


class DeviceBatches(grain.DatasetIterator[dict[str, "jax.Array"]]):
    """What `to_device` returns. An error of `it` is raised by the `next` that would deliver it."""

    def __init__(self, it: BatchIterator, sharding: "jax.sharding.Sharding", *, depth: int) -> None:
        super().__init__()
        self._it = it
        self._sharding = sharding
        self._depth = depth
        self._state = it.get_state()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="to_device")
        self._ahead: collections.deque[Future[Any]] = collections.deque()
        self._meter = Meter()

    def __next__(self) -> dict[str, "jax.Array"]:
        while len(self._ahead) < self._depth:
            self._ahead.append(self._thread.submit(self._produce))
        try:
            with self._meter.waiting():
                produced = self._ahead.popleft().result()
                if produced is None:
                    raise StopIteration
        except Exception:
            self.set_state(self._state)  # what was read ahead is read again, not skipped
            raise
        batch, self._state = produced
        self._ahead.append(self._thread.submit(self._produce))
        return batch

    def get_state(self) -> dict[str, Any]:
        return self._state

    def set_state(self, state: dict[str, Any]) -> None:
        self._drop_ahead()
        self._it.set_state(state)
        self._state = state

    def stats(self) -> Stats:
        """How long `next` waited for the thread, against the time between calls."""
        return self._meter.stats()

    def close(self) -> None:
        """Ends the thread; `next` may not be called afterwards."""
        self._drop_ahead()
        self._thread.shutdown()
        super().close()

    def _produce(self) -> tuple[dict[str, "jax.Array"], dict[str, Any]] | None:
        import jax

        try:
            batch = next(self._it)
        except StopIteration:
            return None  # a future cannot carry StopIteration out of a generator
        arrays = {
            name: jax.make_array_from_process_local_data(self._sharding, array)
            for name, array in batch.items()
        }
        return arrays, self._it.get_state()

    def _drop_ahead(self) -> None:
        """Waits for the batch being read, if any, so that nothing touches `it` any more."""
        for future in self._ahead:
            future.cancel()
        for future in self._ahead:
            if not future.cancelled():
                future.exception()
        self._ahead.clear()
