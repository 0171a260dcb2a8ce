# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Best-fit decreasing bin packing, run over the histogram of sizes.

Pieces of one size are interchangeable, and so are bins with equal room and equal content. Moving
whole groups of them makes the search depend on the row length, not on the corpus (the idea of
longest-pack-first histogram packing; Krell et al. 2021, arXiv:2107.02027). The result is that of
best-fit decreasing, piece by piece.
"""

import bisect
import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Group:
    """Bins with equal content.

    Args:
        count: Number of bins.
        room: Free units in each.
        items: Content of each: pairs (size, number of pieces).
    """

    count: int
    room: int
    items: tuple[tuple[int, int], ...]


class _Open:
    """Groups with room left, the fullest first."""

    def __init__(self) -> None:
        self._groups: dict[int, list[Group]] = {}
        self._rooms: list[int] = []

    def push(self, group: Group) -> None:
        if group.room not in self._groups:
            self._groups[group.room] = []
            bisect.insort(self._rooms, group.room)
        self._groups[group.room].append(group)

    def pop(self, size: int) -> Group | None:
        """Removes and returns the group with the least room >= `size`."""
        i = bisect.bisect_left(self._rooms, size)
        if i == len(self._rooms):
            return None
        room = self._rooms[i]
        group = self._groups[room].pop()
        if not self._groups[room]:
            del self._groups[room], self._rooms[i]
        return group

    def all(self) -> list[Group]:
        return [group for room in self._rooms for group in self._groups[room]]


def best_fit(counts: np.ndarray, *, length: int) -> list[Group]:
    """Packs counts[size] pieces, i64[length + 1], of each size into bins of `length`."""
    bins = _Open()
    for size in np.flatnonzero(counts)[::-1].tolist():
        left = int(counts[size])
        while left:
            fresh = Group(-(-left // (length // size)), length, ())
            group = bins.pop(size) or fresh
            each = group.room // size
            filled = min(group.count, left // each)
            left -= filled * each
            last = left if filled < group.count else 0  # the one bin that takes fewer than `each`
            left -= last
            for count, items in ((filled, each), (min(last, 1), last)):
                if count:
                    added = (*group.items, (size, items))
                    bins.push(Group(count, group.room - items * size, added))
            untouched = group.count - filled - min(last, 1)
            if untouched:
                bins.push(Group(untouched, group.room, group.items))
    return bins.all()
