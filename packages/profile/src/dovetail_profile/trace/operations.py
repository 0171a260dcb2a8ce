# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Runs of instructions on the devices of any platform."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Sequence

import numpy as np

from dovetail_profile.trace.events import Events, combinations
from dovetail_profile.trace.space import Line

_NEVER = (1 << 63) - 1  # picoseconds


@dataclasses.dataclass(frozen=True)
class Operations(Events):
    """Runs of instructions, ordered by lane and then by start.

    `duration_ps` includes nested runs. On a CPU a `while`, `call` or `conditional` may end before
    its body, whose runs continue on other lanes.

    Attributes:
        device: int64 [events], index of the device on its host.
        program: int64 [events], number of the program, as in `Recording.modules`.
        run: int64 [events], number of the program's run, equal on all its devices; -1: unknown.
    """

    device: np.ndarray
    program: np.ndarray
    run: np.ndarray

    @functools.cached_property
    def self_ps(self) -> np.ndarray:
        """int64 [events], the duration without nested runs; see `self_times`."""
        return self_times(self.lane, self.start_ps, self.duration_ps)


def self_times(lane: np.ndarray, start: np.ndarray, duration: np.ndarray) -> np.ndarray:
    """Returns the self time of each event: int64 [events].

    A moment belongs to the event that began last on its lane, nested or not (nodes of a GPU's
    command buffer may overlap). The sum over a lane is the length of the union of its events.

    Args:
        lane: int64 [events].
        start: int64 [events].
        duration: int64 [events].
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
    """Returns the union of intervals: starts and stops, int64 [spans], ordered and disjoint."""
    order = np.argsort(start, kind="stable")
    start, stop = start[order], np.maximum.accumulate(stop[order])
    first = np.ones(len(start), bool)
    first[1:] = start[1:] > stop[:-1]
    last = np.append(first[1:], True)[: len(start)]
    return start[first], stop[last]


def of_cpu(
    lines: Sequence[Line], host: int, inner: Callable[[int, str], Collection[str]]
) -> list[Operations]:
    """Returns the runs of a host's threads as those of a CPU device.

    An event of an instruction ends as its thread leaves it. Other threads may still work on it. The
    thread to complete it records an event "end: ", but after it has run the users of the result. A
    run lasts until that event or until the next instruction on that thread, whichever is first. A
    loop with a traced body lasts as long as its event: the runs of the body are the rest.

    Args:
        lines: The threads.
        host: Index of the host.
        inner: Returns the names of the instructions called by an instruction of a program.
    """
    lines = [line for line in lines if len(line.texts("hlo_op").owner)]
    threads = [_of_thread(line, host) for line in lines]
    keys, ready, thread = _marks(lines)
    seen = {key for runs in threads for key in _instructions(runs)}
    begins = [np.sort(runs.start_ps) for runs in threads]

    def until_ready(line: Line, runs: Operations) -> Operations:
        key = _numbers(line, "_p", "_pt")[line.texts("hlo_op").owner]
        mark = np.minimum(np.searchsorted(keys, key), len(keys) - 1)
        stop = runs.start_ps + runs.duration_ps
        longer = (keys[mark] == key) & (key != 0) & (ready[mark] > stop)
        for program, name in _instructions(runs.select(longer)):
            if any((program, x) in seen for x in inner(program, name)):
                longer &= (runs.program != program) | (runs.code != runs.names.index(name))
        for i, begin in enumerate(begins):
            at = np.flatnonzero(longer & (thread[mark] == i))
            following = np.append(begin, _NEVER)[np.searchsorted(begin, stop[at])]
            stop[at] = np.minimum(ready[mark[at]], following)
        return dataclasses.replace(runs, duration_ps=stop - runs.start_ps)

    return [until_ready(*x) for x in zip(lines, threads, strict=True)]


def _of_thread(line: Line, host: int) -> Operations:
    named = line.texts("hlo_op")
    return Operations(
        host=np.full(len(line), host),
        device=line.each("device_ordinal", 0),
        lane=np.zeros(len(line), np.int64),
        start_ps=line.start_ps,
        duration_ps=line.duration_ps,
        program=line.each("program_id"),
        run=line.each("run_id"),
        code=named.of_each(len(line)),
        names=named.texts,
        lanes=(line.name,),
    ).select(named.owner)


def _marks(lines: Sequence[Line]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns numbers, starts and threads of the events "end: ", ordered by number."""
    marks = [np.zeros((3, 1), np.int64)]  # never empty; the number 0 links nothing
    for i, line in enumerate(lines):
        ends = [code for code, name in enumerate(line.names) if name.startswith("end: ")]
        rows = np.stack([_numbers(line, "_c", "_ct"), line.start_ps, np.full(len(line), i)])
        marks.append(rows[:, np.isin(line.code, ends)])
    keys, starts, threads = np.concatenate(marks, axis=1)
    order = np.argsort(keys, kind="stable")
    return keys[order], starts[order], threads[order]


def _numbers(line: Line, number: str, kind: str) -> np.ndarray:
    """Returns the link of each event to another one: a number of a kind; 0: none."""
    return line.each(number, 0) * 64 + line.each(kind, 0)


def _instructions(runs: Operations) -> set[tuple[int, str]]:
    """Returns program and name of each different instruction."""
    first, _ = combinations(runs.program, runs.code)
    codes = runs.code[first].tolist()
    return {(p, runs.names[c]) for p, c in zip(runs.program[first].tolist(), codes, strict=True)}


def joined(pieces: Sequence[Operations]) -> Operations:
    """Returns the runs of all pieces in order."""
    runs = Operations.joined(pieces)
    return runs.select(np.lexsort((-runs.duration_ps, runs.start_ps, runs.lane)))
