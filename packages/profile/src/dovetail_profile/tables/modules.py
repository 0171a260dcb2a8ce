# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Programs: how often each ran, how long, and what a run costs."""

import dataclasses

import numpy as np

from dovetail_profile.table import Table
from dovetail_profile.tables.work import Work, distinct, total, unjoined, work_of
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
        median_us: Median time of a run, from its first instruction to the end of its last.
        p99_us: 99th percentile, likewise.
        instructions: Number of different instructions that ran.
        flops: Floating-point operations of a run, the mean; None if an instruction has no rule.
        bytes: Bytes that the instructions of a run read and write, the mean; None likewise.
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


def modules(recording: Recording) -> Table[ModuleRow]:
    """Returns the programs that ran, the one with the most time first."""
    works = work_of(recording)
    programs: dict[tuple[int, int], list[Work]] = {}
    for work in works:
        programs.setdefault((work.host, work.program), []).append(work)
    walls = wall_times(recording)
    rows = [_row(recording, group, walls[key]) for key, group in programs.items()]
    rows.sort(key=lambda row: -row.self_us)
    return Table(ModuleRow, tuple(rows), unjoined(works))


def _row(recording: Recording, works: list[Work], walls: np.ndarray) -> ModuleRow:
    flops, size = total(w.flops for w in works), total(w.bytes for w in works)
    return ModuleRow(
        program=works[0].program_name,
        id=works[0].program,
        host=recording.hosts[works[0].host],
        runs=len(walls),
        self_us=sum(work.self_ps for work in works) / 1e6,
        median_us=float(np.median(walls)) / 1e6,
        p99_us=float(np.percentile(walls, 99)) / 1e6,
        instructions=len(works),
        flops=None if flops is None else flops / len(walls),
        bytes=None if size is None else size / len(walls),
    )


def wall_times(recording: Recording) -> dict[tuple[int, int], np.ndarray]:
    """Returns the picoseconds of each run of a program, by host and number of the program."""
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
