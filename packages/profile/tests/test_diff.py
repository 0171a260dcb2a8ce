# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Changes from one recording to another."""

import copy
import dataclasses
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from dovetail_profile.program.frames import Frame
from dovetail_profile.program.module import Instruction, Module
from dovetail_profile.tables.diff import diff
from dovetail_profile.trace.recording import Recording

STEPS = 4  # fixtures/make.py


class Edited(Module):
    """A program whose file has grown by some lines."""

    lines: int | None = 0

    def source(self, instruction: Instruction) -> Frame | None:
        if self.lines is None:  # each instruction has a line of its own
            return Frame("each.py", "", instruction.id)
        frame = super().source(instruction)
        return frame and dataclasses.replace(frame, line=frame.line + self.lines)


def changed(
    recording: Recording,
    *,
    rename: Callable[[str], str] = str,
    factor: dict[str, int] | None = None,
    lines: int | None = 0,
    keep: Callable[[str], bool] = bool,
) -> Recording:
    """The recording with other names, times, lines and instructions."""
    runs, after = recording.operations, Recording(recording.spaces, recording.hosts)
    factors = np.array([(factor or {}).get(name, 1) for name in runs.names])[runs.code]
    kept = np.array([keep(name) for name in runs.names])[runs.code]
    self_ps = (runs.self_ps * factors)[kept]
    runs = runs.select(kept)
    after.operations = dataclasses.replace(runs, names=tuple(map(rename, runs.names)))
    vars(after.operations)["self_ps"] = self_ps
    after.modules = {}
    for key, module in recording.modules.items():
        after.modules[key] = other = copy.copy(module)
        other.__class__, other.lines = Edited, lines
        for name in ("instructions", "by_id"):
            vars(other).pop(name, None)
        vars(other)["computations"] = {
            number: dataclasses.replace(
                c,
                instructions=tuple(
                    dataclasses.replace(x, name=rename(x.name)) for x in c.instructions
                ),
            )
            for number, c in module.computations.items()
        }
    return after


def test_nothing_changed(recording: Recording) -> None:
    table = diff(recording, changed(recording))
    assert {(row.delta_us, row.ratio) for row in table} <= {(0, 1), (0, None)}
    us = recording.operations.self_ps.sum() / 1e6
    assert table.before_us == table.after_us == pytest.approx(us / STEPS, rel=1e-12)
    assert table.notes[0].startswith("Times are per step")
    assert len(table.regressions(0.0)) == 0


def test_lines_and_shapes_are_kept_apart(recording: Recording) -> None:
    runs, expected, actual = recording.operations, Counter(), Counter()
    for program, code, ps in zip(runs.program, runs.code, runs.self_ps, strict=True):
        module = recording.modules[0, program]
        instruction = module.instructions[runs.names[code]]
        key = str(module.source(instruction) or ""), str(instruction.shape)
        expected[key] += int(ps) / 1e6 / STEPS
    for row in diff(recording, recording):
        actual[row.source, row.shape] += row.before_us
    assert actual == pytest.approx(expected, rel=1e-9)  # sums of hundreds of floats
    lined = changed(recording, lines=None)
    runs = np.unique(np.stack([runs.program, runs.code]), axis=1)
    assert len(diff(lined, lined)) == runs.shape[1]


def test_other_numbers_in_names_and_moved_lines_are_the_same_instructions(recording) -> None:
    after = changed(recording, rename=lambda name: f"{name}.77", factor={"sort.0": 3}, lines=5)
    table = diff(recording, after)
    assert None not in table.column("before_us") + table.column("after_us")
    (row,) = (row for row in table if row.delta_us)
    assert (row.name, row.opcode, row.scope) == ("sort.0.77", "sort", "sorting")
    runs = recording.operations
    sort_ps = int(runs.self_ps[runs.code == runs.names.index("sort.0")].sum())
    assert row.before_us == pytest.approx(sort_ps / 1e6 / STEPS, rel=1e-12)
    assert row.delta_us == pytest.approx(2 * row.before_us, rel=1e-12)
    assert row.ratio == pytest.approx(3, rel=1e-12)
    growth = (table.after_us - table.before_us) / table.before_us
    assert table.regressions(growth * 0.99).rows == (row,)
    assert table.regressions(growth * 1.01).rows == ()


@pytest.mark.parametrize("gone_after", [True, False])
def test_an_instruction_on_one_side_has_none_on_the_other(recording, gone_after: bool) -> None:
    less = changed(recording, keep=lambda name: name != "sort.0")
    table = diff(recording, less) if gone_after else diff(less, recording)
    sides = [(row.before_us, row.after_us) for row in table if row.opcode == "sort"]
    assert [side[gone_after] for side in sides] == [None]
    (row,) = table.where("opcode", "sort")
    assert (row.ratio, row.delta_us < 0) == (None, gone_after)


def test_deltas_add_up_between_two_versions_of_jax(recordings: dict[str, Recording]) -> None:
    before, after = recordings.values()
    table = diff(before, after)
    totals = [r.operations.self_ps.sum() / 1e6 / STEPS for r in (before, after)]
    assert sum(table.column("delta_us")) == pytest.approx(totals[1] - totals[0], rel=1e-9)
    matched = [row for row in table if row.before_us is not None and row.after_us is not None]
    assert {"sort", "while"} <= {row.opcode for row in matched}


def test_without_steps_times_are_per_run_of_a_program(recording: Recording) -> None:
    other = changed(recording, factor={"sort.0": 2})
    spans = recording.spans
    other.spans = dataclasses.replace(spans, step=np.full(len(spans), -1))
    table = diff(recording, other)
    assert "per run of its program" in table.notes[0]
    (sort,) = table.where("opcode", "sort")
    runs = recording.operations
    sort_ps = int(runs.self_ps[runs.code == runs.names.index("sort.0")].sum())
    assert sort.before_us == pytest.approx(sort_ps / 1e6 / STEPS, rel=1e-12)  # a run each step
    program = next(k for k, m in recording.modules.items() if m.name == "jit_late")
    late_us = runs.self_ps[runs.program == program[1]].sum() / 1e6  # one run in all
    others = (runs.self_ps[runs.program != program[1]].sum()) / 1e6 / STEPS
    assert table.before_us == pytest.approx(late_us + others, rel=1e-12)
