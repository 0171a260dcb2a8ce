# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Collectives: bytes sent, time, and the time hidden behind other work."""

import dataclasses
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from dovetail_profile.program.collective import Collective, collectives_of
from dovetail_profile.program.cost import Costs
from dovetail_profile.program.module import Module
from dovetail_profile.table import Table
from dovetail_profile.tables.intervals import NONE, Intervals, before_ps, busy, intervals
from dovetail_profile.tables.work import ratio, scaled
from dovetail_profile.trace.operations import Operations
from dovetail_profile.trace.recording import Recording

if TYPE_CHECKING:
    import jax

_CONTAINERS = ("while", "call", "conditional")  # they last as long as what they run


@dataclasses.dataclass(frozen=True)
class CollectiveRow:
    """A collective of a program. Times are sums over all calls on all devices.

    Attributes:
        op: The instruction.
        kind: "all-reduce", "all-gather" and so on, also of a pair of start and done.
        source, scope, program: File and line, module path, name of the program.
        group_size, groups: Devices in a group, number of groups; None if the program does not say.
        bytes: Least number of bytes sent by a device in a call, by the formulas in
            `program.collective`; None likewise.
        calls: Number of calls. Without a trace: on one device in one run, where a loop of unknown
            rounds counts once.
        time_us: From the start to the end, with the wait for other devices; None if none ran.
        hidden_us, exposed_us: `time_us` with and without other work on the device; None likewise.
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
    """Returns the collectives of a trace or of a compiled program, the most exposed time first.

    Equal collectives of programs of one name share a row.

    Args:
        program: A recording, or a compiled program, without times then.
        link_bytes_per_s: Rate of the link of a device.
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
    times, sums = _times(recording), defaultdict(lambda: np.zeros(3, np.int64))
    for key, module in recording.modules.items():
        for x in collectives_of(module):
            sums[_row(module, x)] += times.get((*key, x.start.name), 0)
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
    rate = ratio(scaled(row.bytes, calls), time_ps / 1e12)
    return dataclasses.replace(
        row,
        calls=calls,
        time_us=time_ps / 1e6,
        hidden_us=hidden_ps / 1e6,
        exposed_us=(time_ps - hidden_ps) / 1e6,
        bytes_per_s=rate,
        link_fraction=ratio(rate, link),
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
    places = {
        (int(runs.host[at[0]]), int(runs.program[at[0]]), runs.names[runs.code[at[0]]]): at
        for at in _equal(runs.code, runs.program, runs.host)
    }
    is_work = np.ones(len(runs), bool)
    for key in apart & places.keys():
        is_work[places[key]] = False
    work, nothing, times = busy(runs.select(is_work)), np.zeros(0, np.int64), {}
    for key in pairs.keys() & places.keys():
        dones = runs.select(places.get((*key[:2], pairs[key] or ""), nothing))
        times[key] = _time(runs.select(places[key]), dones, work)
    return times


def _equal(*columns: np.ndarray) -> list[np.ndarray]:
    """Returns the indices of equal rows, an array for each."""
    order = np.lexsort(columns)
    changes = np.any([np.diff(column[order]) for column in columns], axis=0)
    return np.split(order, 1 + np.flatnonzero(changes))


def _time(
    starts: Operations, dones: Operations, work: Mapping[tuple[int, int], Intervals]
) -> np.ndarray:
    """Returns the calls of a collective, their time and the hidden time."""
    values = np.zeros(3, np.int64)
    for device in np.unique(starts.device).tolist():
        at = np.flatnonzero(starts.device == device)
        start, stop = intervals(starts, at[np.argsort(starts.start_ps[at])])
        ends = np.sort(intervals(dones, dones.device == device)[1])
        # A call ends with the last wait before the next call.
        last = np.searchsorted(ends, np.append(start[1:], np.iinfo(np.int64).max)) - 1
        stop = np.maximum(stop, np.append(ends, 0)[last])
        union = work.get((int(starts.host[0]), device), NONE)
        hidden = before_ps(union, stop) - before_ps(union, start)
        values += (len(start), (stop - start).sum(), hidden.sum())
    return values
