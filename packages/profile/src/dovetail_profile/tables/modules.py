# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Programs: number, length and cost of their runs."""

import contextlib
import dataclasses

import numpy as np

from dovetail_profile.table import Table
from dovetail_profile.tables.memory import memory
from dovetail_profile.tables.work import Work, distinct, grouped, ratio, total, unjoined, work_of
from dovetail_profile.trace.recording import Recording

_NEVER = np.iinfo(np.int64).max


@dataclasses.dataclass(frozen=True)
class ModuleRow:
    """A program on the devices of one host.

    Attributes:
        program: Its name; "?" if the trace lacks it.
        id: Its number in the trace: programs of one name differ in it.
        host: The host.
        runs: Number of runs, on all devices of the host.
        self_us: Time of its instructions, on all devices and threads.
        median_us, p99_us: Percentiles of the time of a run, from first to last instruction.
        instructions: Number of different executed instructions.
        flops, bytes: Mean FLOPs and bytes moved in a run; None without a rule.
        peak_bytes: Memory at the peak, see `Memory`; None if the trace has no valid assignment.
    """

    program: str
    id: int
    host: str
    runs: int
    self_us: float
    median_us: float
    p99_us: float
    instructions: int
    flops: float | None
    bytes: float | None
    peak_bytes: int | None


def modules(recording: Recording) -> Table[ModuleRow]:
    """Returns the executed programs, the one with the most time first."""
    works, walls = work_of(recording), wall_times(recording)
    programs = grouped(works, lambda work: (work.host, work.program))
    rows = [_row(recording, group, walls[key]) for key, group in programs.items()]
    rows.sort(key=lambda row: -row.self_us)
    return Table(ModuleRow, tuple(rows), unjoined(works))


def _row(recording: Recording, works: list[Work], walls: np.ndarray) -> ModuleRow:
    module, peak = works[0].module, None
    with contextlib.suppress(ValueError):  # no assignment of buffers, or a damaged one
        peak = memory(module).peak_bytes if module else None
    return ModuleRow(
        program=works[0].program_name,
        id=works[0].program,
        host=recording.hosts[works[0].host],
        runs=len(walls),
        self_us=sum(work.self_ps for work in works) / 1e6,
        median_us=float(np.median(walls)) / 1e6,
        p99_us=float(np.percentile(walls, 99)) / 1e6,
        instructions=len(works),
        flops=ratio(total(w.flops for w in works), len(walls)),
        bytes=ratio(total(w.bytes for w in works), len(walls)),
        peak_bytes=peak,
    )


def wall_times(recording: Recording) -> dict[tuple[int, int], np.ndarray]:
    """Returns picoseconds of the runs of each program: int64 [runs], by host and number."""
    runs = recording.operations
    if not len(runs):
        return {}
    key = np.zeros(len(runs), np.int64)
    for column in (runs.run, runs.device, runs.program, runs.host):
        values, place = distinct(column)
        key = key * len(values) + place
    keys, place = distinct(key)
    start, stop = np.full(len(keys), _NEVER), np.full(len(keys), -_NEVER)
    np.minimum.at(start, place, runs.start_ps)
    np.maximum.at(stop, place, runs.start_ps + runs.duration_ps)
    host, program = np.zeros((2, len(keys)), np.int64)
    host[place], program[place] = runs.host, runs.program
    pairs = set(zip(host.tolist(), program.tolist(), strict=True))
    return {(h, p): (stop - start)[(host == h) & (program == p)] for h, p in pairs}
