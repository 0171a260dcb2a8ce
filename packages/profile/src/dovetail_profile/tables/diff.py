# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Two recordings of a program, before and after a change.

Numbers in names change with each compilation. Instructions match by program, opcode, line of
source, module path and shapes, the rest without the line. Times are per step.
"""

import dataclasses
from collections.abc import Callable, Hashable

from dovetail_profile.table import Table
from dovetail_profile.tables.modules import wall_times
from dovetail_profile.tables.steps import marks_of
from dovetail_profile.tables.work import Work, grouped, ratio, work_of
from dovetail_profile.trace.recording import Recording


@dataclasses.dataclass(frozen=True)
class DiffRow:
    """Instructions of one identity, before and after.

    Attributes:
        name: One of the instructions after, else of those before.
        opcode, shape: As in HLO's text.
        source, scope: File and line, and module path.
        before_us, after_us: Self time of a step; None if there was no such instruction.
        delta_us: The increase.
        ratio: After over before; None if one of them is None or before is 0.
    """

    name: str
    opcode: str
    source: str
    scope: str
    shape: str
    before_us: float | None
    after_us: float | None
    delta_us: float
    ratio: float | None


@dataclasses.dataclass(frozen=True, repr=False)
class DiffTable(Table[DiffRow]):
    """The rows, largest change first. Deltas add up to `after_us` - `before_us`.

    Attributes:
        before_us, after_us: Self time of a step, all instructions.
    """

    before_us: float = 0.0
    after_us: float = 0.0

    def regressions(self, fraction: float) -> Table[DiffRow]:
        """Returns growing rows, largest first; none unless the total grew by over a fraction."""
        grew = self.after_us > self.before_us * (1 + fraction)
        rows = tuple(row for row in self.rows if row.delta_us > 0) if grew else ()
        return Table(DiffRow, tuple(sorted(rows, key=lambda row: -row.delta_us)), self.notes)


def diff(before: Recording, after: Recording) -> DiffTable:
    """Returns the changes between recordings, largest first.

    Without steps in one of them, times are per run of the program.
    """
    by_step = all(_steps(recording) for recording in (before, after))
    old, new = (_times(recording, by_step) for recording in (before, after))
    rows = []
    for key in (_full, _unlined):
        rows += _matched(old, new, key)
    rows += [_row(group, []) for group in grouped(old, _full).values()]
    rows += [_row([], group) for group in grouped(new, _full).values()]
    rows.sort(key=lambda row: -abs(row.delta_us))
    unit = "step" if by_step else "run of its program"
    totals = [sum(row.before_us or 0.0 for row in rows), sum(row.after_us or 0.0 for row in rows)]
    note = f"Times are per {unit}: {totals[0]:,.0f} us before, {totals[1]:,.0f} us after."
    return DiffTable(DiffRow, tuple(rows), (note,), *totals)


_Timed = tuple[Work, float]  # microseconds a step


def _steps(recording: Recording) -> int:
    spans = recording.spans
    marks = [m for host in range(len(recording.hosts)) for m in marks_of(spans, host).tolist()]
    numbers = [(int(spans.code[m]), int(spans.step[m])) for m in marks]
    return len({pair if pair[1] >= 0 else m for m, pair in zip(marks, numbers, strict=True)})


def _times(recording: Recording, by_step: bool) -> list[_Timed]:
    steps, walls = _steps(recording), wall_times(recording)
    return [
        (work, work.self_ps / 1e6 / (steps if by_step else len(walls[work.host, work.program])))
        for work in work_of(recording)
    ]


def _full(timed: _Timed) -> Hashable:
    frame = timed[0].frame
    return (*_unlined(timed), frame and (frame.file, frame.line))


def _unlined(timed: _Timed) -> tuple[Hashable, ...]:
    work = timed[0]
    if work.instruction is None or work.module is None:
        return work.program, work.name
    by_id = work.module.by_id
    taken = tuple(str(by_id[i].shape) for i in work.instruction.operands if i in by_id)
    shapes = str(work.instruction.shape), *taken
    return work.program_name, work.opcode, work.scope, shapes


def _matched(
    old: list[_Timed], new: list[_Timed], key: Callable[[_Timed], Hashable]
) -> list[DiffRow]:
    """Returns rows of the identities on both sides, and takes their work from the lists."""
    before, after = grouped(old, key), grouped(new, key)
    both = before.keys() & after.keys()
    for timed in (old, new):
        timed[:] = [pair for pair in timed if key(pair) not in both]
    return [_row(before[identity], after[identity]) for identity in both]


def _row(before: list[_Timed], after: list[_Timed]) -> DiffRow:
    work = max(after or before, key=lambda pair: pair[1])[0]
    old, new = (sum(us for _, us in side) if side else None for side in (before, after))
    return DiffRow(
        name=work.name,
        opcode=work.opcode,
        source=str(work.frame or ""),
        scope=work.scope,
        shape=str(work.instruction.shape) if work.instruction else "",
        before_us=old,
        after_us=new,
        delta_us=(new or 0.0) - (old or 0.0),
        ratio=ratio(new, old),
    )
