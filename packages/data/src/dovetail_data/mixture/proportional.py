# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Proportional interleaving of sources.

No source is ever a whole row ahead of its share or behind it. This is the chairman assignment
problem (Tijdeman, Discrete Mathematics 32, 1980): his rule keeps |x - l n| at or below 1 - 1/(2k -
2) for k sources with shares l after n rows, and no rule can do better. With weights of one
denominator D the sequence repeats after D rows: one period in memory answers for any row.
"""

import heapq
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

PERIOD = 1 << 16  # the largest denominator of weights: a part in 65,536, and tables of a megabyte


def shares(weights: Sequence[Fraction]) -> list[int]:
    """Returns integers in the proportions of `weights`, with sum <= PERIOD.

    One weight must be positive. Exact if such integers exist; else rounded by largest remainder,
    with sum PERIOD, and then a weight below 1 / (2 PERIOD) may become 0.
    """
    total = sum(weights)
    exact = [weight / total for weight in weights]
    denominator = math.lcm(*(share.denominator for share in exact))
    if denominator <= PERIOD:
        return [int(share * denominator) for share in exact]
    counts = [math.floor(share * PERIOD) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda j: counts[j] - exact[j] * PERIOD)
    for j in by_remainder[: PERIOD - sum(counts)]:
        counts[j] += 1
    common = math.gcd(*counts)
    return [count // common for count in counts]


class Cycle:
    """An endless sequence of sources: each period has counts[j] places of source j, evenly spread.

    `counts` i64[k] has the period as its sum. A source of count 0 has no place.
    """

    def __init__(self, counts: np.ndarray) -> None:
        self._counts = counts
        self._period = int(counts.sum())
        self._source = _assign(counts)
        self._starts = np.cumsum(counts) - counts
        self._places = np.argsort(self._source, kind="stable")  # of source 0, then of source 1, ..
        self._nth = np.empty(self._period, np.int64)
        self._nth[self._places] = np.arange(self._period) - np.repeat(self._starts, counts)

    def at(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the source of each place, i64[p], and the number of its earlier places."""
        periods, within = np.divmod(places, self._period)
        source = self._source[within]
        return source, periods * self._counts[source] + self._nth[within]

    def before(self, place: int) -> np.ndarray:
        """Returns the number of places of each source before `place`, i64[k]."""
        periods, within = divmod(place, self._period)
        rest = np.bincount(self._source[:within], minlength=len(self._counts))
        return periods * self._counts + rest

    def place(self, source: int, nth: int) -> int:
        """Returns the place of the nth occurrence of a source, counted from 0."""
        periods, within = divmod(nth, int(self._counts[source]))
        return periods * self._period + int(self._places[self._starts[source] + within])


def _assign(counts: np.ndarray) -> np.ndarray:
    """Returns one period by Tijdeman's rule.

    At place n = 1, 2, .. the sources with l n - x >= 1/(2k - 2) are eligible, and the one with the
    least (1 - 1/(2k - 2) - (l n - x)) / l comes. For its (x + 1)-th occurrence, a source is thus
    released at a place, and the quotient less n is a deadline. Both are known beforehand for each
    occurrence. The rest is a queue of released occurrences by deadline.
    """
    source = np.repeat(np.arange(len(counts)), counts)
    k = np.count_nonzero(counts)
    if k == 1:
        return source
    period, count, c = len(source), counts[source], 2 * k - 2
    x = np.arange(period) - np.repeat(np.cumsum(counts) - counts, counts)
    release = -(-period * (1 + c * x) // (c * count))
    # Exact: deadlines are quotients of integers below 2^34 and differ by 2^-30 or not at all.
    deadline = (c - 1 + c * x) / count
    by_deadline = np.lexsort((source, deadline))
    released = np.argsort(release[by_deadline], kind="stable")
    coming = zip(release[by_deadline][released].tolist(), released.tolist(), strict=True)
    ready: list[int] = []
    order = []
    at, rank = next(coming)
    for n in range(1, period + 1):
        while at <= n:
            heapq.heappush(ready, rank)
            at, rank = next(coming, (period + 1, -1))
        order.append(heapq.heappop(ready))
    return source[by_deadline][order]
