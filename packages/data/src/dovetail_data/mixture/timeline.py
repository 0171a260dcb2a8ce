# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The sources of a mixture, place after place: its stages, and the end of each source.

An epoch is cut into segments with one cycle of sources each: a segment ends with its stage, or when
a source is used up. There are at most as many as stages and sources together, so the source at any
place, and the number of its earlier places, take one search and one look in a table.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np

from dovetail_data.mixture.proportional import Cycle

Exhausted = Literal["repeat", "stop", "drop"]


@dataclasses.dataclass(frozen=True)
class _Segment:
    start: int
    before: np.ndarray  # i64[k]: places of each source in the epoch before the segment
    cycle: Cycle


class Timeline:
    """The source at every place of a mixture.

    Args:
        starts: First place of each stage; the first is 0.
        counts: Proportions of the sources in each stage, i64[k].
        sizes: Rows in an epoch of each source; None without an end.
        exhausted: "repeat", "stop" or "drop"; see `mix`.

    Attributes:
        epoch: Places in an epoch; None without an end.
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
        """Returns the source at each place, i64[p], and the place in the order of that source."""
        epochs, within = np.divmod(places, self.epoch) if self.epoch else (None, places)
        source, nth = np.empty((2, len(places)), np.int64)
        segments = np.searchsorted(self._starts, within, side="right") - 1
        for i in set(segments.tolist()):
            in_segment, segment = segments == i, self._segments[i]
            source[in_segment], times = segment.cycle.at(within[in_segment] - segment.start)
            nth[in_segment] = times + segment.before[source[in_segment]]
        return source, nth if epochs is None else nth + epochs * self._per_epoch[source]

    def drawn(self, place: int) -> np.ndarray:
        """Returns the number of places of each source before `place`, i64[k]."""
        if self.epoch is None:
            return self._before(place)
        epochs, within = divmod(place, self.epoch)
        return epochs * self._before(self.epoch) + self._before(within)

    def reached(self, place: int) -> np.ndarray:
        """Returns, for each source, the end of the places in its own order used before `place`."""
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
        """Returns the place at which the segment must end, or None.

        With "drop", it is behind the last row of the first source to be used up; with "stop", at
        the first row that would be missing.
        """
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
