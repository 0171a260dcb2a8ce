# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What an iterator delivered, and how long its consumer waited for it."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from dovetail_data.corpus import CorruptDocument


@dataclasses.dataclass(frozen=True, kw_only=True)
class IteratorStats:
    """batches: delivered. wait_s: spent inside `next`. total_s: from the first `next` to the end
    of the last. The first batch counts in none of the times: it opens files.

    fill: the fraction of delivered slots that held a pair. rows: rows drawn from each source since
    row 0, on all hosts. corrupt: the documents that this host found damaged and masked.
    """

    batches: int
    wait_s: float
    total_s: float
    fill: float = 0.0
    rows: Mapping[str, int] = dataclasses.field(default_factory=dict)
    corrupt: tuple[CorruptDocument, ...] = ()

    @property
    def wait_fraction(self) -> float:
        """wait_s / total_s, 0 before the second batch."""
        return self.wait_s / self.total_s if self.total_s else 0.0


class Meter:
    """Measures calls of `next`. clock: seconds, monotonic."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._batches = 0
        self._wait_s = 0.0
        self._first = self._last = 0.0
        self._slots = self._filled = 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around the production of one batch; one that raises is not counted."""
        begin = self._clock()
        yield
        self._last = self._clock()
        if self._batches == 0:
            self._first = self._last
        else:
            self._wait_s += self._last - begin
        self._batches += 1

    def delivered(self, batch: Mapping[str, np.ndarray]) -> None:
        """Counts the slots of a batch and those that hold something."""
        array = batch["segment_ids"] if "segment_ids" in batch else batch["mask"]
        self._slots += array.size
        self._filled += int(np.count_nonzero(array))

    def stats(
        self, *, rows: Mapping[str, int] | None = None, corrupt: tuple[CorruptDocument, ...] = ()
    ) -> IteratorStats:
        return IteratorStats(
            batches=self._batches,
            wait_s=self._wait_s,
            total_s=self._last - self._first,
            fill=self._filled / self._slots if self._slots else 0.0,
            rows=dict(rows or {}),
            corrupt=corrupt,
        )
