# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The iterator that `to_device` returns."""

import collections
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import grain
import jax

from dovetail_data.device import BatchIterator
from dovetail_data.stats import Meter, Stats


class DeviceBatches(grain.DatasetIterator[dict[str, jax.Array]]):
    """What `to_device` returns. An error of `it` is raised by the `next` that would deliver it."""

    def __init__(self, it: BatchIterator, sharding: jax.sharding.Sharding, *, depth: int) -> None:
        super().__init__()
        self._it = it
        self._sharding = sharding
        self._depth = depth
        self._state = it.get_state()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="to_device")
        self._ahead: collections.deque[Future[Any]] = collections.deque()
        self._meter = Meter()

    def __next__(self) -> dict[str, jax.Array]:
        self._fill()
        try:
            with self._meter.waiting():
                produced = self._ahead.popleft().result()
                if produced is None:
                    raise StopIteration
        except BaseException:
            self.set_state(self._state)  # what was read ahead is read again, not skipped
            raise
        batch, self._state = produced
        self._fill()
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

    def _produce(self) -> tuple[dict[str, jax.Array], dict[str, Any]] | None:
        try:
            batch = next(self._it)
        except StopIteration:
            return None  # the end; a StopIteration inside a future is a trap for its callers
        arrays = {
            name: jax.make_array_from_process_local_data(self._sharding, array)
            for name, array in batch.items()
        }
        return arrays, self._it.get_state()

    def _fill(self) -> None:
        while len(self._ahead) < self._depth:
            self._ahead.append(self._thread.submit(self._produce))

    def _drop_ahead(self) -> None:
        """Waits for the batch being read, if any, so that nothing touches `it` any more."""
        for future in self._ahead:
            future.cancel()
        for future in self._ahead:
            if not future.cancelled():
                future.exception()
        self._ahead.clear()
