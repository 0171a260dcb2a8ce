# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Reads of the batch that begins at any rank, on demand or ahead in threads or processes.

A batch is a function of the rank of its first row and of nothing else. So batches read ahead need
no state: one that is asked for is used, any other is thrown away.
"""

import collections
import hashlib
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Int64

from dovetail_data.batching.shared import Exchange, Sender, Sent
from dovetail_data.corpus.corpus import CorruptDocument
from dovetail_data.corpus.processes import Processes
from dovetail_data.rows.order import LeftOut
from dovetail_data.rows.rows import Arrays, Rows

_BLOCK_PLACES = 1024  # 0.1 to 0.3 ms, which the first batch of a run waits for

Read: TypeAlias = tuple[Arrays, list[CorruptDocument]]


class Reader:
    """Reads this host's share of each batch.

    Args:
        rows: The rows.
        seed: Seed of the order.
        step: Elements of a global batch.
        share: This host's elements [first, last) of it.
        total: Number of places to read; None without an end.
        left_out: Places of the order to pass over.
    """

    def __init__(
        self,
        rows: Rows,
        *,
        seed: int | None,
        step: int,
        share: tuple[int, int],
        total: int | None,
        left_out: LeftOut,
    ) -> None:
        self.rows = rows
        self.step = step
        self.total = total
        self._left_out = left_out
        self._order = rows.draws(seed)
        self._block = (0, np.empty(0, np.int64))
        self._first, self._last = share
        digest = hashlib.sha256(f"keys/{seed}".encode()).digest()[:8]
        self._salt = np.uint64(int.from_bytes(digest, "little"))

    def clipped(self, rank: int) -> int:
        return rank if self.total is None else min(rank, self.total)

    def draws(self, ranks: Int64[np.ndarray, "k"]) -> Int64[np.ndarray, "k"]:
        """Returns the rows at the places with these ranks."""
        return self._order(self._left_out.places(ranks))

    def __call__(self, start: int) -> Read:
        """Returns the share of the batch that begins at rank `start`, and its corrupt documents.

        Rows beyond the end are zeros.
        """
        first, last = self.clipped(start + self._first), self.clipped(start + self._last)
        corrupt: list[CorruptDocument] = []
        keys = self._left_out.places(np.arange(first, last)).astype(np.uint64) ^ self._salt
        batch = self.rows.batch(self._drawn(first, last), keys=keys, corrupt=corrupt)
        missing = (self._last - self._first - (last - first)) * self.rows.unit
        if missing:
            batch = {name: _extended(array, missing) for name, array in batch.items()}
        return batch, corrupt

    def _drawn(self, first: int, last: int) -> np.ndarray:
        """Returns the rows of ranks [first, last).

        They are computed a block at a time: for the few of one batch, NumPy's cost per call
        dominates.
        """
        begin, rows = self._block  # one read: another thread may put its own in place
        if not begin <= first <= last <= begin + len(rows):
            begin = first
            rows = self.draws(np.arange(first, self.clipped(max(last, first + _BLOCK_PLACES))))
            self._block = begin, rows
        return rows[first - begin : last - begin]


def _extended(array: np.ndarray, rows: int) -> np.ndarray:
    return np.concatenate([array, np.zeros((rows, *array.shape[1:]), array.dtype)])


class Ahead:
    """Calls of a reader ahead of their use, in threads or in processes.

    Args:
        reader: The reader.
        threads: Number of threads.
        workers: Number of processes; one of the two is 0.
    """

    def __init__(self, reader: Reader, *, threads: int, workers: int) -> None:
        self._reader = reader
        self._exchange = Exchange() if workers else None
        if self._exchange is None:
            self._pool: Threads | Processes = Threads(reader, threads)
        else:
            scratch = self._exchange.directory
            self._pool = Processes(Sender(reader, scratch), workers, scratch=scratch)
        self._depth = 2 * (workers or threads)  # for each, one being read and one waiting
        self._next = 0
        self._pending: collections.deque[tuple[int, Future[Read | Sent]]] = collections.deque()

    def take(self, start: int) -> Read:
        """Returns the batch from rank `start` on, and starts to read the next ones."""
        if not self._pending or self._pending[0][0] != start:
            for _, future in self._pending:
                future.cancel()
            self._pending.clear()
            self._next = start
        try:
            self._fill()
            result = self._pending.popleft()[1].result()
            self._fill()
        except BrokenProcessPool as error:
            raise RuntimeError(
                "each worker must live as long as its iterator: got one dead. Guard the script by "
                '`if __name__ == "__main__":`, or pass fewer workers if memory ran out.'
            ) from error
        return result.receive() if isinstance(result, Sent) else result

    def close(self) -> None:
        self._pool.close(wait=False)
        if self._exchange is not None:
            self._exchange.close()

    def _fill(self) -> None:
        total = self._reader.total
        while len(self._pending) < self._depth and (total is None or self._next < total):
            self._pending.append((self._next, self._pool.submit(self._next)))
            self._next += self._reader.step


class Threads:
    """A pool of threads that call `work`."""

    def __init__(self, work: Reader, workers: int) -> None:
        self._work = work
        self._executor = ThreadPoolExecutor(workers, thread_name_prefix="batches")
        self._exiting = sys.is_finalizing  # bound here: at exit the module `sys` may be gone too

    def submit(self, start: int) -> Future[Any]:
        return self._executor.submit(self._work, start)

    def close(self, *, wait: bool) -> None:
        # At exit the threads have ended already, and the modules that `shutdown` needs are gone.
        if not self._exiting():
            self._executor.shutdown(wait=wait, cancel_futures=True)
