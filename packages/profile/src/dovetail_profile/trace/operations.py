# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What devices executed: each run of an instruction, from the planes of any platform."""

import dataclasses
import functools
import itertools
from collections.abc import Sequence

import numpy as np

from dovetail_profile.trace.space import Line

_NEVER = 1 << 63


@dataclasses.dataclass(frozen=True)
class Operations:
    """Runs of instructions, one entry for each, ordered by lane and then by start.

    Attributes:
        host: int64 [runs], the index of the host.
        device: int64 [runs], the number of the device on its host.
        lane: int64 [runs], the place of the thread or stream in `lanes`.
        start_ps: int64 [runs], after the start of the trace of the host.
        duration_ps: int64 [runs], with what is nested in it.
        program: int64 [runs], the number of the program, as in `Recording.modules`.
        run: int64 [runs], the number of the run of the program.
        code: int64 [runs], the place of the instruction's name in `names`.
        names: The different names of instructions.
        lanes: Names of threads or streams.
    """

    host: np.ndarray
    device: np.ndarray
    lane: np.ndarray
    start_ps: np.ndarray
    duration_ps: np.ndarray
    program: np.ndarray
    run: np.ndarray
    code: np.ndarray
    names: tuple[str, ...]
    lanes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.start_ps)

    @functools.cached_property
    def self_ps(self) -> np.ndarray:
        """int64 [runs], the duration without runs that are nested in it: see `self_times`."""
        return self_times(self.lane, self.start_ps, self.duration_ps)

    def select(self, mask: np.ndarray) -> "Operations":
        """Returns the runs of a mask: bool [runs]."""
        arrays = {
            f.name: getattr(self, f.name)[mask]
            for f in dataclasses.fields(self)
            if isinstance(getattr(self, f.name), np.ndarray)
        }
        return dataclasses.replace(self, **arrays)


def self_times(lane: np.ndarray, start: np.ndarray, duration: np.ndarray) -> np.ndarray:
    """Returns the time of each event in which no later one runs on the same lane.

    Of nested events that is the duration without what is nested. Where events overlap and are not
    nested, as nodes of a GPU's command buffer may, the one that began last has the time. So the sum
    on a lane is the length of the union of its events.

    Args:
        lane: int64 [events].
        start: int64 [events].
        duration: int64 [events].

    Returns:
        int64 [events], in the order of the arguments.
    """
    order = np.lexsort((-duration, start, lane))
    rows = zip(*(x[order].tolist() for x in (lane, start, start + duration)), strict=True)
    own = [0] * len(order)
    above: list[tuple[int, int]] = []  # the end and the place of each event that is still open
    last, now = None, 0
    for i, (line, first, end) in enumerate(itertools.chain(rows, [(None, 0, 0)])):
        until = first if line == last else _NEVER
        while above:  # the time from `now` on belongs to the innermost
            stop, place = above[-1]
            if stop > until:
                own[place] += until - now
                break
            if stop > now:
                own[place] += stop - now
                now = stop
            above.pop()
        last, now = line, first
        above.append((end, i))
    values = np.zeros(len(order), np.int64)
    values[order] = own
    return values


def union_ps(start: np.ndarray, stop: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the union of intervals: int64 [spans] starts and stops, ordered and apart."""
    order = np.argsort(start, kind="stable")
    start, stop = start[order], np.maximum.accumulate(stop[order])
    first = np.ones(len(start), bool)
    first[1:] = start[1:] > stop[:-1]
    last = np.append(first[1:], True)[: len(start)]
    return start[first], stop[last]


def of_cpu(lines: Sequence[Line], host: int) -> list[Operations]:
    """Returns what the lines of the plane of a host executed as a CPU device.

    XLA's CPU client names instruction, program and run of each event in its stats.
    """
    return [one_line(line, host) for line in lines if len(line.stats("hlo_op").owner)]


def one_line(line: Line, host: int) -> Operations:
    """Returns the events of one line that name an instruction."""
    named = line.texts("hlo_op")
    at, count = named.owner, len(line)

    def stat(name: str, default: int) -> np.ndarray:
        return line.stats(name).of_each(count, default)[at]

    return Operations(
        host=np.full(len(at), host),
        device=stat("device_ordinal", 0),
        lane=np.zeros(len(at), np.int64),
        start_ps=line.start_ps[at],
        duration_ps=line.duration_ps[at],
        program=stat("program_id", -1),
        run=stat("run_id", -1),
        code=named.value,
        names=named.texts,
        lanes=(line.name,),
    )


def joined(pieces: Sequence[Operations]) -> Operations:
    """Returns the runs of all, with one list of names and of lanes."""
    names: dict[str, int] = {}
    lanes: list[str] = []
    codes, places = [], []
    for piece in pieces:
        code = [names.setdefault(name, len(names)) for name in piece.names]
        codes.append(np.array(code, np.int64)[piece.code])
        places.append(piece.lane + len(lanes))
        lanes += piece.lanes

    def column(name: str) -> np.ndarray:
        return np.concatenate([np.zeros(0, np.int64), *(getattr(p, name) for p in pieces)])

    nothing = [np.zeros(0, np.int64)]
    runs = Operations(
        host=column("host"),
        device=column("device"),
        lane=np.concatenate(nothing + places),
        start_ps=column("start_ps"),
        duration_ps=column("duration_ps"),
        program=column("program"),
        run=column("run"),
        code=np.concatenate(nothing + codes),
        names=tuple(names),
        lanes=tuple(lanes),
    )
    order = np.lexsort((-runs.duration_ps, runs.start_ps, runs.lane))
    return runs.select(order)
