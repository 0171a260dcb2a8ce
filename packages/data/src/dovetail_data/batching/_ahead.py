# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The iterator behind `to_device`."""

import collections
import dataclasses
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax

from dovetail_data.batching.batch import BatchIterator
from dovetail_data.batching.grain import DatasetIterator
from dovetail_data.batching.stats import IteratorStats, Meter


class DeviceBatches(DatasetIterator[dict[str, jax.Array]]):
    """An iterator over batches on devices, as `to_device` returns it.

    An error of `it` is raised by the `next` for its batch.

    Args:
        it: The iterator over NumPy arrays.
        sharding: Sharding of each array.
        depth: Largest number of batches ahead.
    """

    def __init__(self, it: BatchIterator, sharding: jax.sharding.Sharding, *, depth: int) -> None:
        super().__init__()
        self._it = it
        self._sharding = sharding
        self._depth = depth
        self._state = it.get_state()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="to_device")
        self._ahead: collections.deque[Future[Any]] = collections.deque()
        self._meter = Meter()
        self._exiting = sys.is_finalizing  # bound here: at exit the module `sys` may be gone too

    def __next__(self) -> dict[str, jax.Array]:
        self._fill()
        try:
            with self._meter.waiting():
                produced = self._ahead[0].result()
                if produced is None:
                    raise StopIteration
        except BaseException:
            self.set_state(self._state)  # batches read ahead are read again, not skipped
            raise
        self._ahead.popleft()
        batch, self._state = produced
        self._fill()
        return batch

    def __repr__(self) -> str:
        return f"DeviceBatches({self._it!r}, {self._sharding}, depth={self._depth})"

    def get_state(self) -> dict[str, Any]:
        return self._state

    def set_state(self, state: dict[str, Any]) -> None:
        self._drop_ahead()
        self._it.set_state(self._state)  # so that a refused `state` skips nothing
        self._it.set_state(state)
        self._state = state

    def stats(self) -> IteratorStats:
        """Returns the time that `next` waited for the thread, against the time between calls.

        The other fields come from `it.stats()`, if `it` has it. They include batches read ahead.
        """
        waited = self._meter.stats()
        inner = getattr(self._it, "stats", None)  # not in the protocol: a foreign iterator has none
        if inner is None:
            return waited
        times = {"batches": waited.batches, "wait_s": waited.wait_s, "total_s": waited.total_s}
        return dataclasses.replace(inner(), **times)

    def close(self) -> None:
        """Ends the thread after the batch that it is reading. Do not call `next` afterwards."""
        # At exit the thread has ended already, and the modules that `shutdown` needs are gone.
        if not self._exiting():
            # No waiting: the garbage collector may call this on that very thread.
            self._thread.shutdown(wait=False, cancel_futures=True)
        super().close()

    def __del__(self) -> None:
        if hasattr(self, "_exiting"):  # else the constructor raised, and there is no thread
            self.close()

    def _fill(self) -> None:
        while len(self._ahead) < self._depth:
            self._ahead.append(self._thread.submit(_produce, self._it, self._sharding))

    def _drop_ahead(self) -> None:
        """Waits for the batch being read, if any. Nothing touches `it` afterwards."""
        for future in self._ahead:
            future.cancel()
        for future in self._ahead:
            if not future.cancelled():
                future.exception()
        self._ahead.clear()


@jax.transfer_guard("allow")
def _produce(
    it: BatchIterator, sharding: jax.sharding.Sharding
) -> tuple[dict[str, jax.Array], dict[str, Any]] | None:
    """Returns the next batch and the state after it, or None at the end.

    Not a method: the thread must not keep the iterator alive, because the iterator ends the thread.
    """
    try:
        batch = next(it)
    except StopIteration:
        return None
    arrays = {
        name: jax.make_array_from_process_local_data(sharding, array)
        for name, array in batch.items()
    }
    return arrays, it.get_state()
