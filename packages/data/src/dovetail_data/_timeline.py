# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The sources of a mixture, place after place: its stages, and what happens when one is used up.

An epoch is cut into segments in which one cycle of sources goes round: a segment ends where a
stage ends, or where a source leaves. There are as many as stages and sources together at most, so
the source at any place, and how often it came before, take one search and one look in a table.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np

from dovetail_data._proportional import Cycle

Exhausted = Literal["repeat", "stop", "drop"]


@dataclasses.dataclass(frozen=True)
class _Segment:
    start: int
    before: np.ndarray  # i64[k]: places of each source in the epoch before the segment
    cycle: Cycle


class Timeline:
    """starts: the place at which each stage begins, the first 0. counts: i64[k] of each, the
    proportions of the sources. sizes: rows in an epoch of each source; None if it has no end.

    epoch: places in an epoch; None where there is no end.
    """

    def __init__(
        self,
        starts: Sequence[int],
        counts: Sequence[np.ndarray],
        *,
        sizes: Sequence[int | None],
        exhausted: Exhausted,
    ) -> None:
        self._sizes = [None] * len(sizes) if exhausted == "repeat" else list(sizes)
        self._exhausted = exhausted
        self._segments: list[_Segment] = []
        self.epoch: int | None = None
        place, before = 0, np.zeros(len(sizes), np.int64)
        for count, end in zip(counts, [*starts[1:], None], strict=True):
            place, before = self._stage(count, place, before, end)
            if self.epoch is not None:
                _check_reached(starts, self.epoch)
                break
        self._starts = np.array([segment.start for segment in self._segments])
        if self.epoch is not None:
            drawn = self._before(self.epoch).tolist()
            pairs = zip(self._sizes, drawn, strict=True)
            # The next epoch of an ended source begins with the next of the mixture.
            self._per_epoch = np.array([n if size is None else size for size, n in pairs])

    def at(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The source at each place i64[p], and the place in the order of that source."""
        epochs, within = np.divmod(places, self.epoch) if self.epoch else (None, places)
        source, nth = np.empty((2, len(places)), np.int64)
        found = np.searchsorted(self._starts, within, side="right") - 1
        for i in set(found.tolist()):
            here, segment = found == i, self._segments[i]
            source[here], times = segment.cycle.at(within[here] - segment.start)
            nth[here] = times + segment.before[source[here]]
        return source, nth if epochs is None else nth + epochs * self._per_epoch[source]

    def drawn(self, place: int) -> np.ndarray:
        """How many of the places before `place` are of each source, i64[k]."""
        if self.epoch is None:
            return self._before(place)
        epochs, within = divmod(place, self.epoch)
        return epochs * self._before(self.epoch) + self._before(within)

    def reached(self, place: int) -> np.ndarray:
        """What `place` places of the mixture use of each source's order: below which place."""
        if self.epoch is None:
            return self._before(place)
        epochs, within = divmod(place, self.epoch)
        return epochs * self._per_epoch + self._before(within)

    def _before(self, within: int) -> np.ndarray:
        i = int(np.searchsorted(self._starts, within, side="right")) - 1
        segment = self._segments[i]
        return segment.before + segment.cycle.before(within - segment.start)

    def _stage(
        self, count: np.ndarray, place: int, before: np.ndarray, end: int | None
    ) -> tuple[int, np.ndarray]:
        """Adds the segments of a stage: from `place` to `end`, or to the end of the epoch."""
        while True:
            ended = [n == size for n, size in zip(before.tolist(), self._sizes, strict=True)]
            left = np.where(ended, 0, count) if self._exhausted == "drop" else count
            if not left.any():
                return self._end(place, before)
            segment = _Segment(place, before, Cycle(left // np.gcd.reduce(left)))
            limit = self._limit(segment, left)
            self._segments.append(segment)
            if end is not None and (limit is None or limit >= end):
                return end, before + segment.cycle.before(end - place)
            if limit is None:
                return place, before
            before = before + segment.cycle.before(limit - place)
            place = limit
            if self._exhausted == "stop":
                return self._end(place, before)

    def _limit(self, segment: _Segment, left: np.ndarray) -> int | None:
        """The place at which the segment must end, if it must: with "drop", behind the last row of
        the first source to be used up; with "stop", before the first row that is not there."""
        places = [
            segment.start + segment.cycle.place(j, size - int(segment.before[j]) - 1) + 1
            if self._exhausted == "drop"
            else segment.start + segment.cycle.place(j, size - int(segment.before[j]))
            for j, size in enumerate(self._sizes)
            if size is not None and left[j]
        ]
        return min(places, default=None)

    def _end(self, place: int, before: np.ndarray) -> tuple[int, np.ndarray]:
        self.epoch = place
        return place, before


def _check_reached(starts: Sequence[int], epoch: int) -> None:
    late = [start for start in starts[1:] if start >= epoch]
    if late:
        raise ValueError(
            f"a stage must begin within the epoch: got start={late[0]} where the sources of the "
            f"stage before it are used up after {epoch} rows. Begin it before row {epoch}, or pass "
            'exhausted="repeat".'
        )
