# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Events in columns."""

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

E = TypeVar("E", bound="Events")


@dataclasses.dataclass(frozen=True)
class Events:
    """Events of threads or streams, in columns int64 [events].

    Attributes:
        host: Index of the host.
        lane: Index of the thread or stream in `lanes`.
        start_ps: Time after the start of the host's trace.
        duration_ps: Duration.
        code: Index of the name in `names`.
        names: The different names.
        lanes: Names of threads or streams.
    """

    host: np.ndarray
    lane: np.ndarray
    start_ps: np.ndarray
    duration_ps: np.ndarray
    code: np.ndarray
    names: tuple[str, ...]
    lanes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.start_ps)

    def select(self: E, rows: np.ndarray) -> E:
        """Returns the events of a mask, bool [events], or at places, int64 [selected]."""
        columns = {name: getattr(self, name)[rows] for name in self._columns()}
        return dataclasses.replace(self, **columns)

    @classmethod
    def joined(cls: type[E], pieces: Sequence[E]) -> E:
        """Returns the events of all pieces, with one list of names and of lanes."""
        names: dict[str, int] = {}
        lanes: list[str] = []
        columns = {name: [np.zeros(0, np.int64)] for name in cls._columns()}
        for piece in pieces:
            codes = [names.setdefault(name, len(names)) for name in piece.names]
            code = np.array(codes, np.int64)[piece.code]
            moved = dataclasses.replace(piece, code=code, lane=piece.lane + len(lanes))
            lanes += piece.lanes
            for name, column in columns.items():
                column.append(getattr(moved, name))
        whole = {name: np.concatenate(column) for name, column in columns.items()}
        return cls(**whole, names=tuple(names), lanes=tuple(lanes))

    @classmethod
    def _columns(cls) -> list[str]:
        return [f.name for f in dataclasses.fields(cls) if f.name not in ("names", "lanes")]


def combinations(*columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first row of each combination of values, and the combination of each row."""
    place = np.zeros(len(columns[0]), np.int64)
    first = place
    for column in columns:
        values, code = np.unique(column, return_inverse=True)
        place = place * len(values) + code
        _, first, place = np.unique(place, return_index=True, return_inverse=True)
    return first, place
