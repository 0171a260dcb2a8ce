# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Places of an order that an iterator passes over, and the numbering of the others.

An order of rows is a function of the place: 0, 1, 2, .. An iterator that leaves out places counts
the others. The *rank* of a place is the number of kept places before it. Ranks and kept places
increase together, so each is found from the other by a search among the ranges left out.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64

from dovetail_data._arguments import wrong

_WRITE = "Pass half-open ranges of places, such as [range(4096, 4608)]."


class LeftOut:
    """Disjoint, sorted ranges of places that are left out.

    Args:
        ranges: Ranges of places with step 1, in any order. They may touch or overlap.

    Raises:
        TypeError: An element is not a range.
        ValueError: A range is empty, begins below 0, or has another step than 1.
    """

    def __init__(self, ranges: Sequence[range]) -> None:
        self.ranges = _merged(_checked(ranges))
        self._starts = np.array([r.start for r in self.ranges], np.int64)
        lengths = [len(r) for r in self.ranges]
        self._before = np.cumsum([0, *lengths]).astype(np.int64)

    def places(self, ranks: Int64[np.ndarray, "k"]) -> Int64[np.ndarray, "k"]:
        """Returns the places with these ranks."""
        if not self.ranges:
            return ranks
        first_ranks = self._starts - self._before[:-1]
        return ranks + self._before[np.searchsorted(first_ranks, ranks, side="right")]

    def rank(self, place: int) -> int:
        """Returns the number of kept places before `place`."""
        return place - sum(max(0, min(place, r.stop) - r.start) for r in self.ranges)

    def before(self, place: int) -> list[range]:
        """Returns the ranges, or their beginnings, that lie before `place`."""
        return [range(r.start, min(r.stop, place)) for r in self.ranges if r.start < place]

    def __repr__(self) -> str:
        return ",".join(f"{r.start}:{r.stop}" for r in self.ranges) or "none"


def _checked(ranges: Any) -> list[range]:
    if isinstance(ranges, range) or not isinstance(ranges, Sequence):
        raise wrong("leave_out", "a sequence of ranges", ranges, _WRITE)
    for each in ranges:
        if not isinstance(each, range):
            raise wrong("leave_out", "a sequence of ranges", ranges, _WRITE)
        if each.step != 1 or each.start < 0 or not each:
            raise ValueError(
                f"a range of leave_out must count up by 1 from 0 or more: got {each}. {_WRITE}"
            )
    return list(ranges)


def _merged(ranges: Sequence[range]) -> tuple[range, ...]:
    merged: list[range] = []
    for each in sorted(ranges, key=lambda r: r.start):
        if merged and each.start <= merged[-1].stop:
            merged[-1] = range(merged[-1].start, max(merged[-1].stop, each.stop))
        else:
            merged.append(each)
    return tuple(merged)
