# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The iterator that `to_device` returns."""

import collections
import dataclasses
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import grain
import jax

from dovetail_data.device import BatchIterator
from dovetail_data.stats import IteratorStats, Meter


class DeviceBatches(grain.DatasetIterator[dict[str, jax.Array]]):
    """What `to_device` returns. An error of `it` is raised by the `next` that would deliver it."""

    def __init__(self, it: BatchIterator, sharding: jax.sharding.Sharding, *, depth: int) -> None:
        super().__init__()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="to_device")
        self._it = it
        self._sharding = sharding
        self._depth = depth
        self._state = it.get_state()
        self._ahead: collections.deque[Future[Any]] = collections.deque()
        self._meter = Meter()

    def __next__(self) -> dict[str, jax.Array]:
        self._fill()
        try:
            with self._meter.waiting():
                produced = self._ahead[0].result()
                if produced is None:
                    raise StopIteration
        except BaseException:
            self.set_state(self._state)  # what was read ahead is read again, not skipped
            raise
        self._ahead.popleft()
        batch, self._state = produced
        self._fill()
        return batch

    def get_state(self) -> dict[str, Any]:
        return self._state

    def set_state(self, state: dict[str, Any]) -> None:
        self._drop_ahead()
        self._it.set_state(self._state)  # so that a refused `state` skips nothing
        self._it.set_state(state)
        self._state = state

    def stats(self) -> IteratorStats:
        """How long `next` waited for the thread, against the time between calls.

        What it delivered is told if `it` has `stats()` too; that counts what was read ahead.
        """
        waited = self._meter.stats()
        inner = getattr(self._it, "stats", None)  # not in the protocol: a foreign iterator has none
        if inner is None:
            return waited
        times = {"batches": waited.batches, "wait_s": waited.wait_s, "total_s": waited.total_s}
        return dataclasses.replace(inner(), **times)

    def close(self) -> None:
        """Ends the thread when it has read the batch it is at; `next` may not follow."""
        # No waiting: the garbage collector may call this on that very thread.
        self._thread.shutdown(wait=False, cancel_futures=True)
        super().close()

    def _fill(self) -> None:
        while len(self._ahead) < self._depth:
            self._ahead.append(self._thread.submit(_produce, self._it, self._sharding))

    def _drop_ahead(self) -> None:
        """Waits for the batch being read, if any, so that nothing touches `it` any more."""
        for future in self._ahead:
            future.cancel()
        for future in self._ahead:
            if not future.cancelled():
                future.exception()
        self._ahead.clear()


def _produce(
    it: BatchIterator, sharding: jax.sharding.Sharding
) -> tuple[dict[str, jax.Array], dict[str, Any]] | None:
    """The next batch and the state after it; None at the end. Not a method: the thread must not
    keep alive the iterator that ends it."""
    try:
        batch = next(it)
    except StopIteration:
        return None
    arrays = {
        name: jax.make_array_from_process_local_data(sharding, array)
        for name, array in batch.items()
    }
    return arrays, it.get_state()
