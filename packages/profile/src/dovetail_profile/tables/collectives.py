# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Collectives: the bytes they send, their time, and the part of it that other work hides."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from dovetail_profile.program.collective import Collective, collectives_of
from dovetail_profile.program.cost import Costs
from dovetail_profile.program.module import Module
from dovetail_profile.table import Table
from dovetail_profile.trace.operations import Operations, union_ps
from dovetail_profile.trace.recording import Recording

if TYPE_CHECKING:
    import jax

Spans = tuple[np.ndarray, np.ndarray]  # int64 [spans] starts and stops, ordered and apart

_CONTAINERS = ("while", "call", "conditional")  # they last as long as what they run


@dataclasses.dataclass(frozen=True)
class CollectiveRow:
    """A collective of a program. Times are sums over all calls on all devices.

    Attributes:
        op: The instruction.
        kind: "all-reduce", "all-gather" and so on, also of a pair of start and done.
        source: File and line.
        scope: The module path.
        program: Name of the program.
        group_size: Devices that exchange data; None if the program does not say.
        groups: Number of such groups; None likewise.
        bytes: Bytes that a device has to send in a call, at least, by the formulas in
            `program.collective`; None likewise.
        calls: Number of calls. Of a program that never ran, on one device in one run; a loop
            counts once if its rounds are not known.
        time_us: From the start to the end, with the wait for other devices; None if none ran.
        hidden_us: The part of it in which the device does other work; None likewise.
        exposed_us: The rest; None likewise.
        bytes_per_s: Bytes over time, the mean of a device; None if one is not known.
        link_fraction: `bytes_per_s` as a fraction of the link; None if that is not given.
    """

    op: str
    kind: str
    source: str
    scope: str
    program: str
    group_size: int | None
    groups: int | None
    bytes: float | None
    calls: int = 0
    time_us: float | None = None
    hidden_us: float | None = None
    exposed_us: float | None = None
    bytes_per_s: float | None = None
    link_fraction: float | None = None


def collectives(
    program: "Recording | jax.stages.Compiled", *, link_bytes_per_s: float | None = None
) -> Table[CollectiveRow]:
    """Returns the collectives of a trace, or of a compiled program that never ran.

    Args:
        program: A recording, or a compiled program: its collectives have no times.
        link_bytes_per_s: Bytes that a device can send in a second.

    Returns:
        Equal collectives of programs of one name share a row. The one with the most exposed time
        comes first.
    """
    if isinstance(program, Recording):
        rows = _rows(program, link_bytes_per_s)
    else:
        from dovetail_profile._compat import module_of_compiled

        module = module_of_compiled(program)
        executions = Costs(module).executions
        calls = {
            x.id: n for i, (n, _) in executions.items() for x in module.computations[i].instructions
        }
        rows = [
            dataclasses.replace(_row(module, x), calls=calls.get(x.start.id, 0))
            for x in collectives_of(module)
        ]
    rows.sort(key=lambda row: (-(row.exposed_us or 0), -(row.bytes or 0)))
    return Table(CollectiveRow, tuple(rows))


def _rows(recording: Recording, link: float | None) -> list[CollectiveRow]:
    times, sums = _times(recording), {}
    for key, module in recording.modules.items():
        for x in collectives_of(module):
            row, nothing = _row(module, x), np.zeros(3, np.int64)
            sums[row] = sums.get(row, nothing) + times.get((*key, x.start.name), nothing)
    return [_timed(row, values, link) for row, values in sums.items()]


def _row(module: Module, x: Collective) -> CollectiveRow:
    return CollectiveRow(
        op=x.start.name,
        kind=x.kind,
        source=str(module.source(x.instruction) or ""),
        scope=x.instruction.scope,
        program=module.name,
        group_size=x.group_size,
        groups=x.groups,
        bytes=x.bytes,
    )


def _timed(row: CollectiveRow, values: np.ndarray, link: float | None) -> CollectiveRow:
    calls, time_ps, hidden_ps = values.tolist()
    if not calls:
        return row
    rate = row.bytes * calls / time_ps * 1e12 if row.bytes is not None and time_ps else None
    return dataclasses.replace(
        row,
        calls=calls,
        time_us=time_ps / 1e6,
        hidden_us=hidden_ps / 1e6,
        exposed_us=(time_ps - hidden_ps) / 1e6,
        bytes_per_s=rate,
        link_fraction=rate / link if rate is not None and link else None,
    )


def _times(recording: Recording) -> dict[tuple[int, int, str], np.ndarray]:
    """Returns calls, time and hidden time by host, program and name of the instruction."""
    runs = recording.operations
    pairs: dict[tuple[int, int, str], str | None] = {}
    apart: set[tuple[int, int, str]] = set()  # neither collectives nor other work
    for key, module in recording.modules.items():
        for x in collectives_of(module):
            pairs[*key, x.start.name] = x.done.name if x.done else None
            apart.update((*key, y.name) for y in (x.start, x.done) if y)
        containers = (y for y in module.instructions.values() if y.opcode in _CONTAINERS)
        apart.update((*key, y.name) for y in containers)
    if not pairs or not len(runs):
        return {}
    of = {
        (int(runs.host[at[0]]), int(runs.program[at[0]]), runs.names[runs.code[at[0]]]): at
        for at in _equal(runs.code, runs.program, runs.host)
    }
    is_work = np.ones(len(runs), bool)
    for name in apart & of.keys():
        is_work[of[name]] = False
    work = _work(runs.select(is_work))
    times = {}
    for (host, number, name), done in pairs.items():
        at = of.get((host, number, name))
        if at is not None:
            ends = of.get((host, number, done or ""))
            dones = None if ends is None else runs.select(ends)
            times[host, number, name] = _time(runs.select(at), dones, work)
    return times


def _work(runs: Operations) -> dict[tuple[int, int], Spans]:
    """Returns the time in which each device of each host works."""
    work = {}
    for at in _equal(runs.device, runs.host):
        spans = union_ps(runs.start_ps[at], (runs.start_ps + runs.duration_ps)[at])
        work[int(runs.host[at[0]]), int(runs.device[at[0]])] = spans
    return work


def _equal(*columns: np.ndarray) -> list[np.ndarray]:
    """Returns the places of rows that are equal in all columns, as one array for each value."""
    order = np.lexsort(columns)
    changes = np.zeros(max(len(order) - 1, 0), bool)
    for column in columns:
        changes |= np.diff(column[order]) != 0
    return np.split(order, 1 + np.flatnonzero(changes)) if len(order) else []


def _time(
    starts: Operations, dones: Operations | None, work: Mapping[tuple[int, int], Spans]
) -> np.ndarray:
    """Returns the calls of a collective, their time and the hidden time."""
    values = np.zeros(3, np.int64)
    idle = np.zeros(0, np.int64), np.zeros(0, np.int64)
    for device in np.unique(starts.device).tolist():
        mine = starts.device == device
        order = np.argsort(starts.start_ps[mine])
        start = starts.start_ps[mine][order]
        stop = start + starts.duration_ps[mine][order]
        if dones is not None:
            ends = np.sort((dones.start_ps + dones.duration_ps)[dones.device == device])
            # A call ends with the last wait before the next call.
            last = np.searchsorted(ends, np.append(start[1:], np.iinfo(np.int64).max)) - 1
            stop = np.maximum(stop, np.append(ends, 0)[last])
        spans = work.get((int(starts.host[0]), device), idle)
        hidden = _before(spans, stop) - _before(spans, start)
        values += (len(start), (stop - start).sum(), hidden.sum())
    return values


def _before(spans: Spans, at: np.ndarray) -> np.ndarray:
    """Returns the time that spans, ordered and apart, cover before each of some times."""
    first, last = spans
    covered = np.append(0, np.cumsum(last - first))
    i = np.searchsorted(first, at, side="right")
    return covered[i] - np.maximum(np.append(0, last)[i] - at, 0) * (i > 0)
