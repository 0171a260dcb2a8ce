# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""How long the consumer of an iterator waited for it."""

import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stats:
    """batches: delivered. wait_s: spent inside `next`. total_s: from the first `next` to the end
    of the last. The first batch counts in none of them: it opens files."""

    batches: int
    wait_s: float
    total_s: float

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

    def stats(self) -> Stats:
        return Stats(batches=self._batches, wait_s=self._wait_s, total_s=self._last - self._first)
