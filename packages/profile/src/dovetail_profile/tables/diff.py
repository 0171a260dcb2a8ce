# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Two recordings of one program before and after a change, instruction by instruction.

Numbers in names change with each compilation. An instruction is known by its program, opcode, line
of source, module path and shapes; what is left is matched without the line, which moves when the
file is edited. Times are per step, so that recordings of different lengths compare.
"""

import dataclasses
from collections.abc import Callable, Hashable, Sequence

from dovetail_profile.table import Table
from dovetail_profile.tables.modules import wall_times
from dovetail_profile.tables.steps import marks_of
from dovetail_profile.tables.work import Work, work_of
from dovetail_profile.trace.recording import Recording


@dataclasses.dataclass(frozen=True)
class DiffRow:
    """Instructions of one identity, before and after.

    Attributes:
        name: One of the instructions, as it is called after; before, if there is none after.
        opcode: As in HLO's text.
        source: File and line.
        scope: The module path.
        shape: The shape of the result.
        before_us: Self time of a step; None if there was no such instruction.
        after_us: Likewise.
        delta_us: What it costs more.
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
        before_us: Self time of a step, all instructions.
        after_us: Likewise.
    """

    before_us: float = 0.0
    after_us: float = 0.0

    def regressions(self, fraction: float) -> Table[DiffRow]:
        """Returns the rows that grew, largest first, if the total grew by more than a fraction.

        Otherwise the table is empty.
        """
        grew = self.after_us > self.before_us * (1 + fraction)
        rows = tuple(row for row in self.rows if row.delta_us > 0) if grew else ()
        return Table(DiffRow, tuple(sorted(rows, key=lambda row: -row.delta_us)), self.notes)


def diff(before: Recording, after: Recording) -> DiffTable:
    """Returns the changes from one recording to another, largest first.

    Times are per step. If one of the recordings has no steps, they are per run of the program.
    """
    by_step = all(_steps(recording) for recording in (before, after))
    old, new = (_times(recording, by_step) for recording in (before, after))
    rows = []
    for key in (_full, _unlined):
        rows += _matched(old, new, key)
    rows += [_row(group, None) for group in _groups(old, _full).values()]
    rows += [_row(None, group) for group in _groups(new, _full).values()]
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


def _full(work: Work) -> Hashable:
    return (*_unlined(work), work.frame and (work.frame.file, work.frame.line))


def _unlined(work: Work) -> tuple[Hashable, ...]:
    if work.instruction is None or work.module is None:
        return work.program, work.name
    by_id = work.module.by_id
    taken = tuple(str(by_id[i].shape) for i in work.instruction.operands if i in by_id)
    shapes = str(work.instruction.shape), *taken
    return work.program_name, work.opcode, work.scope, shapes


def _groups(
    timed: Sequence[_Timed], key: Callable[[Work], Hashable]
) -> dict[Hashable, list[_Timed]]:
    groups: dict[Hashable, list[_Timed]] = {}
    for pair in timed:
        groups.setdefault(key(pair[0]), []).append(pair)
    return groups


def _matched(
    old: list[_Timed], new: list[_Timed], key: Callable[[Work], Hashable]
) -> list[DiffRow]:
    """Returns rows of the identities on both sides, and takes their work from the lists."""
    before, after = _groups(old, key), _groups(new, key)
    both = before.keys() & after.keys()
    for timed in (old, new):
        timed[:] = [pair for pair in timed if key(pair[0]) not in both]
    return [_row(before[identity], after[identity]) for identity in both]


def _row(before: list[_Timed] | None, after: list[_Timed] | None) -> DiffRow:
    work = max(after or before or [], key=lambda pair: pair[1])[0]
    old, new = (None if side is None else sum(us for _, us in side) for side in (before, after))
    return DiffRow(
        name=work.name,
        opcode=work.opcode,
        source=str(work.frame or ""),
        scope=work.scope,
        shape=str(work.instruction.shape) if work.instruction else "",
        before_us=old,
        after_us=new,
        delta_us=(new or 0.0) - (old or 0.0),
        ratio=new / old if old and new is not None else None,
    )
