# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A trace file (`*.xplane.pb`): its planes, their lines, and events as arrays.

A plane is a device or the threads of a host, a line is a stream or a thread. Times count from the
start of the trace.

Source: tsl/profiler/protobuf/xplane.proto in the OpenXLA repository.
"""

import dataclasses
import functools
from collections.abc import Mapping

import numpy as np

from dovetail_profile import columns
from dovetail_profile.wire import Damaged, Message

Value = int | float | str | bytes

_LATEST_PS = 1 << 62  # of a start, so that sums fit in int64; Unix time in nanoseconds does not

# Fields of an XStat; exactly one has the value.
_DOUBLE, _UNSIGNED, _INTEGER, _TEXT, _BYTES, _REFERENCE = range(2, 8)


@dataclasses.dataclass(frozen=True)
class Stats:
    """The values of one name on a line.

    Attributes:
        owner: int64 [values], the index of the event.
        value: int64 [values], the value, or its index in `texts`.
        texts: The different texts; empty for integers.
    """

    owner: np.ndarray
    value: np.ndarray
    texts: tuple[str, ...] = ()

    def of_each(self, events: int, default: int = -1) -> np.ndarray:
        """Returns the value of each event: int64 [events]."""
        values = np.full(events, default, np.int64)
        values[self.owner] = self.value
        return values


class Line:
    """A stream or a thread. Events are in the order of the file and may be nested in time.

    Attributes:
        name: The name.
        start_ps: int64 [events], picoseconds after the start of the trace.
        duration_ps: int64 [events]. 0 is an instant.
        code: int64 [events], the index of the name in `names`.
        names: The different names of events.
        kinds: For each name, the values shared by all its events.

    Args:
        plane: The plane.
        start: First position of the message.
        stop: The position after it.
    """

    def __init__(self, plane: "Plane", start: int, stop: int) -> None:
        head, starts, stops = columns.split(plane.data, start, stop, 4)
        self.name = head.text(11) or head.text(2) or f"thread {head.integer(1)}"
        self._plane = plane
        fields = columns.scan(plane.array, starts, stops)
        count = len(starts)
        base = head.integer(3) * 1000
        if abs(base) > _LATEST_PS:
            raise Damaged("a line begins at a time that no clock shows")
        self.start_ps = fields.integers(2, count) + base
        self.duration_ps = fields.integers(3, count)
        ids, self.code = np.unique(fields.integers(1, count), return_inverse=True)
        known = [plane.kinds.get(int(i), ("", {})) for i in ids]
        self.names = tuple(name for name, _ in known)
        self.kinds: tuple[Mapping[str, Value], ...] = tuple(values for _, values in known)
        self._stats = fields.of(4)
        self._known: dict[str, Stats] = {}

    def __len__(self) -> int:
        return len(self.start_ps)

    def stats(self, name: str) -> Stats:
        """Returns the values of a name. Texts, bytes and references become indices in `texts`."""
        if name not in self._known:
            self._known[name] = self._read(name)
        return self._known[name]

    def each(self, name: str, default: int = -1) -> np.ndarray:
        """Returns the value of a name for each event: int64 [events]."""
        return self.stats(name).of_each(len(self), default)

    def texts(self, name: str) -> Stats:
        """Returns the values of a name as texts. Profilers store texts of digits as integers."""
        stats = self.stats(name)
        if stats.texts:
            return stats
        different, codes = np.unique(stats.value, return_inverse=True)
        return Stats(stats.owner, codes, tuple(map(str, different.tolist())))

    @functools.cached_property
    def _values(self) -> tuple[np.ndarray, np.ndarray, columns.Columns]:
        """Number of the name, event, and field of each value of all events."""
        stats, array = self._stats, self._plane.array
        fields = columns.scan(array, stats.value.view(np.int64), stats.stop)
        names = fields.integers(1, len(stats.owner))
        values = fields.of(*range(_DOUBLE, _REFERENCE + 1))
        return names[values.owner], stats.owner[values.owner], values

    def _read(self, name: str) -> Stats:
        names, owners, values = self._values
        mask = names == self._plane.keys.get(name, -1)
        owner, number, value = owners[mask], values.number[mask], values.value[mask]
        if not np.isin(number, (_TEXT, _BYTES, _REFERENCE)).any():
            return Stats(owner, value.view(np.int64))
        if (number == _REFERENCE).all():
            different, codes = np.unique(value, return_inverse=True)
            texts = [self._plane.stat_names.get(key, "") for key in different.tolist()]
            return Stats(owner, codes, tuple(texts))
        places: dict[str, int] = {}
        rows = zip(number.tolist(), value.tolist(), values.stop[mask].tolist(), strict=True)
        codes = [places.setdefault(self._text(*row), len(places)) for row in rows]
        return Stats(owner, np.array(codes, np.int64), tuple(places))

    def _text(self, number: int, value: int, stop: int) -> str:
        if number == _REFERENCE:
            return self._plane.stat_names.get(value, "")
        if number in (_TEXT, _BYTES):
            return self._plane.data[value:stop].decode("utf-8", "replace")
        return str(value)


class Plane:
    """A device, or the threads of a host.

    Attributes:
        name: For example "/host:CPU" or "/device:GPU:0".
        kinds: Name and shared values of each kind of event, by its number.
        stats: Values of the plane, by name.

    Args:
        data: The trace.
        start: First position of the message.
        stop: The position after it.
        array: The data from `columns.padded`.
    """

    def __init__(self, data: bytes, start: int, stop: int, array: np.ndarray) -> None:
        self.data, self.array = data, array
        head, *self._lines = columns.split(data, start, stop, 3)
        self.name = head.text(2)
        self.stat_names = {key.integer(1): key.message(2).text(2) for key in head.messages(5)}
        self.keys = {name: key for key, name in self.stat_names.items()}
        self.stats = self._read(head.views(6))
        self._kinds = head.views(4)

    @functools.cached_property
    def kinds(self) -> dict[int, tuple[str, Mapping[str, Value]]]:
        """See the class."""
        entries = map(Message, self._kinds)
        kinds = {entry.integer(1): entry.message(2) for entry in entries}
        return {i: (kind.text(2), self._read(kind.views(5))) for i, kind in kinds.items()}

    @functools.cached_property
    def lines(self) -> tuple[Line, ...]:
        """The lines, in the order of the file."""
        places = zip(*(p.tolist() for p in self._lines), strict=True)
        return tuple(Line(self, start, stop) for start, stop in places)

    def _read(self, views: list[memoryview]) -> dict[str, Value]:
        stats = map(Message, views)
        return {self.stat_names.get(x.integer(1), ""): self._value(x) for x in stats}

    def _value(self, stat: Message) -> Value:
        if _DOUBLE in stat:
            return stat.double(_DOUBLE)
        if _BYTES in stat:
            return bytes(stat.bytes(_BYTES))
        if _TEXT in stat:
            return stat.text(_TEXT)
        if _REFERENCE in stat:
            return self.stat_names.get(stat.integer(_REFERENCE), "")
        return stat.integer(_INTEGER if _INTEGER in stat else _UNSIGNED)


@dataclasses.dataclass(frozen=True)
class Space:
    """One trace file.

    Attributes:
        planes: Its planes, in the order of the file.
        host: Name of the host. May be empty.
        notes: Errors and warnings of the profiler.
    """

    planes: tuple[Plane, ...]
    host: str
    notes: tuple[str, ...]

    def plane(self, name: str) -> Plane | None:
        """Returns the plane of a name, or None."""
        return next((plane for plane in self.planes if plane.name == name), None)


def parse(data: bytes) -> Space:
    """Parses a file. Raises Damaged."""
    array = columns.padded(data)
    head, starts, stops = columns.split(data, 0, len(data), 1)
    places = zip(starts.tolist(), stops.tolist(), strict=True)
    planes = tuple(Plane(data, start, stop, array) for start, stop in places)
    if not any(plane.name for plane in planes):
        raise Damaged("there is no plane with a name")
    return Space(planes, next(iter(head.texts(4)), ""), (*head.texts(2), *head.texts(3)))
