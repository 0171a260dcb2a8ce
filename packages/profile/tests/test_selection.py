# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Selections: runs and spans of some steps, whose parts make the whole."""

import collections

import numpy as np
import pytest

from dovetail_profile.trace.compilations import Compilation
from dovetail_profile.trace.recording import Recording
from dovetail_profile.trace.selection import Selection, start_ps

STEPS = 4  # of the fixtures; `late` runs in step 2 alone


def programs(recording: Recording) -> collections.Counter[str]:
    """The number of runs of each program."""
    runs = recording.operations
    pairs = {*zip(runs.program.tolist(), runs.run.tolist(), strict=True)}
    return collections.Counter(recording.modules[0, program].name for program, _ in pairs)


@pytest.mark.parametrize(
    "steps, late", [(range(2), 0), (range(1, 4), 1), (range(0, 4, 3), 0), (range(9), 1)]
)
def test_runs_of_the_steps_alone(recording: Recording, steps: range, late: int) -> None:
    chosen = [step for step in range(STEPS) if step in steps]
    part = Selection(recording, steps)
    expected = {"jit_train_step": len(chosen), "jit_tail": len(chosen), "jit_late": late}
    assert programs(part) == collections.Counter(expected)
    assert sorted({*part.spans.step.tolist()} - {-1}) == chosen


def test_single_steps_make_the_whole(recording: Recording) -> None:
    parts = [Selection(recording, range(i, i + 1)) for i in range(STEPS)]
    whole = Selection(recording, range(STEPS))
    for name in ("duration_ps", "self_ps"):
        sums = [int(getattr(part.operations, name).sum()) for part in parts]
        assert sum(sums) == getattr(whole.operations, name).sum()
        assert min(sums) > 0
    assert np.array_equal(whole.operations.start_ps, recording.operations.start_ps)


def test_steps_that_are_absent_have_nothing(recording: Recording) -> None:
    part = Selection(recording, range(9, 12))
    assert (len(part.operations), len(part.spans)) == (0, 0)
    assert part.modules == recording.modules


def test_compilations_of_the_steps_alone(recording: Recording) -> None:
    spans = recording.spans
    begins = dict(zip(spans.step.tolist(), spans.start_ps.tolist(), strict=True))
    second = recording.start_ns[0] / 1e9 + begins[2] / 1e12 + 1e-3  # a millisecond into step 2
    recording.__dict__["compilations"] = {0: [Compilation("late", second)]}
    try:
        assert start_ps(recording, 0, second) == pytest.approx(begins[2] + 1e9, abs=1e6)
        counts = [len(Selection(recording, range(i, i + 1)).compilations[0]) for i in range(STEPS)]
    finally:
        del recording.__dict__["compilations"]
    assert counts == [0, 0, 1, 0]
