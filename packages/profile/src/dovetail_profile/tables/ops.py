# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The time of devices by instruction, line of source, module path, or category."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Literal, get_args

import numpy as np

from dovetail_profile.table import Table
from dovetail_profile.tables.work import NO_SCOPE, Work, grouped, total, unjoined, work_of
from dovetail_profile.trace.recording import Recording

By = Literal["op", "source", "scope", "category"]


@dataclasses.dataclass(frozen=True)
class OpRow:
    """Time of an instruction or a group of them.

    Attributes:
        name: The instruction, line, scope or category.
        opcode: As in HLO's text, "?" if unknown.
        source, scope, program: File and line, module path, name of the program.
        category: See `category_of`. Of a group, these five have most of its time.
        calls: Number of runs.
        self_us: Time of all runs without nested ones, on all devices.
        share: Of the time of all rows.
        flops, bytes: FLOPs and bytes moved in all runs; None without a rule.
    """

    name: str
    opcode: str
    source: str
    scope: str
    program: str
    category: str
    calls: int
    self_us: float
    share: float
    flops: float | None
    bytes: float | None


def _op(work: Work) -> tuple[Hashable, ...]:
    shape = str(work.instruction.shape) if work.instruction else ""
    return work.name, work.program_name, work.opcode, shape, work.frame, work.scope


def _source(work: Work) -> tuple[Hashable, ...]:
    frame = work.frame
    return (str(frame), frame.file, frame.line) if frame else ("(no source)",)


_KEYS: dict[str, Callable[[Work], tuple[Hashable, ...]]] = {  # the name of the row comes first
    "op": _op,
    "source": _source,
    "scope": lambda work: (work.scope or NO_SCOPE,),
    "category": lambda work: (work.category,),
}


def ops(recording: Recording, by: str = "op") -> Table[OpRow]:
    """Returns the time of devices, summed over hosts, devices and their threads.

    Equal instructions of programs with one name (each host has its own) share a row.

    Args:
        recording: The trace.
        by: See `By`.

    Raises:
        ValueError: `by` has another value.
    """
    if by not in get_args(By):
        raise ValueError(f"by must be one of {', '.join(get_args(By))}, got {by!r}")
    works = work_of(recording)
    busy = max(sum(work.self_ps for work in works), 1)
    groups = grouped(works, _KEYS[by])
    rows = [_row(str(name), group, busy) for (name, *_), group in groups.items()]
    rows.sort(key=lambda row: (-row.self_us, row.name))
    lanes = np.count_nonzero(np.bincount(recording.operations.lane))
    notes = [f"Times are sums over {lanes} threads or streams of devices."] if lanes > 1 else []
    return Table(OpRow, tuple(rows), (*unjoined(works), *notes))


def _row(name: str, works: Sequence[Work], busy: int) -> OpRow:
    self_ps = sum(work.self_ps for work in works)
    return OpRow(
        name=name,
        opcode=_most(works, lambda work: work.opcode),
        source=_most(works, lambda work: str(work.frame or "")),
        scope=_most(works, lambda work: work.scope),
        program=_most(works, lambda work: work.program_name),
        category=_most(works, lambda work: work.category),
        calls=sum(work.calls for work in works),
        self_us=self_ps / 1e6,
        share=self_ps / busy,
        flops=total(work.flops for work in works),
        bytes=total(work.bytes for work in works),
    )


def _most(works: Sequence[Work], value: Callable[[Work], str]) -> str:
    """Returns the value with the most time."""
    if len(works) == 1:  # as most are: five counters for each would take most of the time
        return value(works[0])
    times: Counter[str] = Counter()
    for work in works:
        times[value(work)] += work.self_ps
    return times.most_common(1)[0][0]
