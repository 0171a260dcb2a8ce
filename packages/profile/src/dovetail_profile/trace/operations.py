# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Work of devices: each run of an instruction, from the planes of any platform."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Sequence

import numpy as np

from dovetail_profile.trace.space import Line

_NEVER = (1 << 63) - 1  # picoseconds


@dataclasses.dataclass(frozen=True)
class Operations:
    """Runs of instructions, one entry for each, ordered by lane and then by start.

    Attributes:
        host: int64 [runs], the index of the host.
        device: int64 [runs], the number of the device on its host.
        lane: int64 [runs], the place of the thread or stream in `lanes`.
        start_ps: int64 [runs], after the start of the trace of the host.
        duration_ps: int64 [runs], with what is nested in it. On a CPU a `while`, `call` or
            `conditional` may end before its body, which goes on on other lanes.
        program: int64 [runs], the number of the program, as in `Recording.modules`.
        run: int64 [runs], the number of the run of the program, the same on all its devices; -1
            if the platform does not tell.
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


def of_cpu(
    lines: Sequence[Line], host: int, inner: Callable[[int, str], Collection[str]]
) -> list[Operations]:
    """Returns what the lines of the plane of a host executed as a CPU device.

    XLA's CPU client names instruction, program and run of each event in its stats. The event ends
    when its thread leaves the instruction, on which other threads may still work. The thread that
    completes it records an event "end: ", but only after it has run what waited for the result.
    So a run lasts until that event, or until the first instruction that this thread runs before.
    A loop whose body goes on on other threads is left at its event: the body's runs are the rest.

    Args:
        lines: The threads.
        host: The index of the host.
        inner: Returns the names of the instructions within an instruction of a program.
    """
    lines = [line for line in lines if len(line.texts("hlo_op").owner)]
    threads = [_of_thread(line, host) for line in lines]
    keys, ready, thread = _marks(lines)
    seen = {key for runs in threads for key in _instructions(runs, np.ones(len(runs), bool))}
    begins = [np.sort(runs.start_ps) for runs in threads]

    def until_ready(line: Line, runs: Operations) -> Operations:
        key = _numbers(line, "_p", "_pt")[line.texts("hlo_op").owner]
        mark = np.minimum(np.searchsorted(keys, key), len(keys) - 1)
        stop = runs.start_ps + runs.duration_ps
        longer = (keys[mark] == key) & (key != 0) & (ready[mark] > stop)
        for program, name in _instructions(runs, longer):
            if any((program, x) in seen for x in inner(program, name)):
                longer &= (runs.program != program) | (runs.code != runs.names.index(name))
        for i, begin in enumerate(begins):
            at = np.flatnonzero(longer & (thread[mark] == i))
            following = np.append(begin, _NEVER)[np.searchsorted(begin, stop[at])]
            stop[at] = np.minimum(ready[mark[at]], following)
        return dataclasses.replace(runs, duration_ps=stop - runs.start_ps)

    return [until_ready(*x) for x in zip(lines, threads, strict=True)] if len(keys) else threads


def _of_thread(line: Line, host: int) -> Operations:
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


def _marks(lines: Sequence[Line]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns numbers, starts and threads of the events "end: ", ordered by number."""
    columns: list[list[np.ndarray]] = [[np.zeros(0, np.int64)] for _ in range(3)]
    for i, line in enumerate(lines):
        ends = [code for code, name in enumerate(line.names) if name.startswith("end: ")]
        at = np.flatnonzero(np.isin(line.code, ends))
        values = (_numbers(line, "_c", "_ct")[at], line.start_ps[at], np.full(len(at), i))
        for column, value in zip(columns, values, strict=True):
            column.append(value)
    keys, starts, threads = map(np.concatenate, columns)
    order = np.argsort(keys, kind="stable")
    return keys[order], starts[order], threads[order]


def _numbers(line: Line, number: str, kind: str) -> np.ndarray:
    """Returns for each event the number, of its kind, that links it to another; 0: none."""
    count = len(line)
    return line.stats(number).of_each(count, 0) * 64 + line.stats(kind).of_each(count, 0)


def _instructions(runs: Operations, mask: np.ndarray) -> set[tuple[int, str]]:
    """Returns program and name of each different instruction among the runs of a mask."""
    program, code = runs.program[mask], runs.code[mask]
    return {
        (number, runs.names[c])
        for number in np.unique(program).tolist()
        for c in np.unique(code[program == number]).tolist()
    }


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
