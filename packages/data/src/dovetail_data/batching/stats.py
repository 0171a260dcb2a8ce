# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Statistics of an iterator: delivered batches, and the time spent waiting for them."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from dovetail_data.corpus.corpus import CorruptDocument


@dataclasses.dataclass(frozen=True, kw_only=True)
class IteratorStats:
    """Statistics of an iterator. The first batch opens files, so no time includes it.

    Attributes:
        batches: Number of delivered batches.
        wait_s: Seconds spent inside `next`.
        total_s: Seconds from the end of the first `next` to the end of the last.
        fill: Fraction of delivered slots that were filled.
        rows: Rows drawn from each source since row 0, on all hosts.
        corrupt: Documents that this host read damaged and masked.
    """

    batches: int
    wait_s: float
    total_s: float
    fill: float = 0.0
    rows: Mapping[str, int] = dataclasses.field(default_factory=dict)
    corrupt: tuple[CorruptDocument, ...] = ()

    @property
    def wait_fraction(self) -> float:
        """wait_s / total_s; 0 before the second batch."""
        return self.wait_s / self.total_s if self.total_s else 0.0


class Meter:
    """Measures calls of `next`. `clock` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._batches = 0
        self._wait_s = 0.0
        self._first = self._last = 0.0
        self._slots = self._filled = 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Measures the production of one batch. One that raises is not counted."""
        begin = self._clock()
        yield
        self._last = self._clock()
        if self._batches == 0:
            self._first = self._last
        else:
            self._wait_s += self._last - begin
        self._batches += 1

    def delivered(self, batch: Mapping[str, np.ndarray]) -> None:
        """Counts the slots of a batch, and the filled ones."""
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
