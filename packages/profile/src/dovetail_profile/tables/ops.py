# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The time of devices by instruction, line of source, module path, or category."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Literal, get_args

import numpy as np

from dovetail_profile.table import Table
from dovetail_profile.tables.work import Work, total, unjoined, work_of
from dovetail_profile.trace.recording import Recording

By = Literal["op", "source", "scope", "category"]


@dataclasses.dataclass(frozen=True)
class OpRow:
    """Time of one thing.

    Attributes:
        name: The instruction, line, scope or category.
        opcode: As in HLO's text, "?" if unknown. Of several instructions the one with most time.
        source: File and line, likewise.
        scope: The module path, likewise.
        program: The program, likewise.
        category: matmul, reduction, copy and so on, likewise; see `category_of`.
        calls: Number of runs.
        self_us: Time of all runs without what they contain, on all devices.
        share: Of the time of all rows.
        flops: Floating-point operations of all runs; None if an instruction has no rule.
        bytes: Bytes that all runs read and write; None likewise.
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


def _op(work: Work) -> Hashable:
    shape = str(work.instruction.shape) if work.instruction else ""
    return work.program_name, work.name, work.opcode, shape, work.frame, work.scope


_KEYS: dict[str, Callable[[Work], Hashable]] = {
    "op": _op,
    "source": lambda work: work.frame and (work.frame.file, work.frame.line),
    "scope": lambda work: work.scope,
    "category": lambda work: work.category,
}
_NAMES: dict[str, Callable[[Work], str]] = {
    "op": lambda work: work.name,
    "source": lambda work: str(work.frame or "(no source)"),
    "scope": lambda work: work.scope or "(no scope)",
    "category": lambda work: work.category,
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
    groups: dict[Hashable, list[Work]] = {}
    for work in works:
        groups.setdefault(_KEYS[by](work), []).append(work)
    busy = sum(work.self_ps for work in works)
    rows = [_row(group, _NAMES[by], max(busy, 1)) for group in groups.values()]
    rows.sort(key=lambda row: (-row.self_us, row.name))
    lanes = np.count_nonzero(np.bincount(recording.operations.lane))
    notes = [f"Times are sums over {lanes} threads or streams of devices."] if lanes > 1 else []
    return Table(OpRow, tuple(rows), (*unjoined(works), *notes))


def _row(works: Sequence[Work], name: Callable[[Work], str], busy: int) -> OpRow:
    first = max(works, key=lambda work: work.self_ps)
    self_ps = sum(work.self_ps for work in works)
    return OpRow(
        name=name(first),
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
    if len(works) == 1:
        return value(works[0])
    times: Counter[str] = Counter()
    for work in works:
        times[value(work)] += work.self_ps
    return times.most_common(1)[0][0]
