# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from oracle import account, any_order, files, text_of

from dovetail_runs import Account, Straggler, read_metrics
from dovetail_runs.metrics.account import account_of

NONE = {"wall": 0.0, "step": 0.0, "skipped": 0.0, "repeated": 0.0, "stalled": 0.0, "idle": 0.0}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("account") / "metrics.jsonl"


def _account(file, lines) -> Account:
    file.write_text(text_of(lines))
    found = account_of(read_metrics(file).lines)
    assert found is not None
    return found


def _seconds(found: Account) -> dict[str, float]:
    return {
        "wall": found.wall_s,
        "step": found.step_s,
        "skipped": found.skipped_s,
        "repeated": found.repeated_s,
        "stalled": found.stalled_s,
        "idle": found.idle_s,
        "back": found.clock_back_s,
    }


def _steps(*rows, generation=0):
    return [
        {"step": s, "generation": generation, "time_s": t, "loss": 1.0, "step_time_s": x}
        for s, t, x in rows
    ]


def _check(file, lines):
    if len(lines) < 2:
        file.write_text(text_of(lines))
        assert account_of(read_metrics(file).lines) is None
    else:
        assert _seconds(_account(file, lines)) == account(lines)


LOST = [  # a step without a loss was skipped, and another launch repeats it
    {"step": 0, "generation": 0, "time_s": 0.0, "loss": None, "skipped": 1.0, "step_time_s": 2.0},
    {"step": 0, "generation": 1, "time_s": 5.0, "loss": 1.0, "step_time_s": 3.0},
]


@settings(max_examples=60)
@given(files())
@example(LOST)
def test_seconds_are_those_of_an_account_line_by_line(file, lines):
    _check(file, lines)


@pytest.mark.thorough
@settings(max_examples=600)
@given(st.one_of(files(), any_order()))
def test_many_files_also_those_that_no_writer_leaves(file, lines):
    _check(file, lines)


def test_an_account_by_hand(file):
    """Two launches: step 1 of the first is undone, a step is skipped, the devices wait once."""
    lines = [
        *_steps((0, 10.0, 2.0), (1, 12.0, 1.5)),
        *_steps((1, 20.0, 1.0), (2, 21.0, 0.75), (3, 22.0, 0.5), generation=1),
    ]
    lines[3]["skipped"], lines[4]["stall_s"] = 1.0, 0.25
    found = _account(file, lines)
    assert _seconds(found) == {
        "wall": 12.0,
        "step": 3.5,
        "skipped": 0.75,
        "repeated": 1.5,
        "stalled": 0.25,
        "idle": 8.0,
        "back": 0.0,
    }
    assert found.goodput == 3.5 / 12.0
    assert found.other_s == 0.0  # steps before the first line are not in the wall time
    assert found.straggler is None


def test_a_skipped_step_without_a_loss_that_is_repeated_is_lost_once(file):
    found = _account(file, LOST)
    assert (found.skipped_s, found.repeated_s, found.step_s) == (0.0, 2.0, 3.0)


def test_a_plain_loop_has_the_time_from_line_to_line(file):
    rows = [(0, 0, 0.0), (1, 0, 2.0), (2, 0, 5.0), (2, 1, 15.0), (3, 1, 16.0)]
    lines = [{"step": s, "generation": g, "time_s": t, "loss": 1.0} for s, g, t in rows]
    found = _account(file, lines)
    assert _seconds(found) == NONE | {
        "wall": 16.0,
        "step": 3.0,
        "repeated": 3.0,
        "idle": 10.0,
        "back": 0.0,
    }
    assert found.other_s == 0.0


def test_a_loop_that_logs_no_loss_has_an_account_too(file):
    lines = [{"step": i, "generation": 0, "time_s": 2.0 * i, "accuracy": 0.5} for i in range(4)]
    assert _account(file, lines).goodput == 1.0


def test_a_clock_that_went_back_takes_nothing_from_the_wall_time(file):
    found = _account(file, _steps((0, 100.0, 1.0), (1, 103.0, 1.0), (2, 99.5, 1.0), (3, 101.0, 1)))
    assert (found.wall_s, found.clock_back_s, found.step_s) == (4.5, 3.5, 4.0)


def test_times_that_do_not_move_are_no_division(file):
    found = _account(file, _steps((0, 5.0, 0.0), (1, 5.0, 0.0)))
    assert (found.wall_s, found.goodput, found.other_s) == (0.0, 0.0, 0.0)
    assert str(found.clock_back_s) == "0.0"  # and not "-0.0"


def test_steps_longer_than_the_wall_time_leave_no_negative_rest(file):
    assert _account(file, _steps((0, 0.0, 50.0), (1, 1.0, 50.0))).other_s == 0.0


SLOW = {"straggler": 2.0, "straggler/data": 12.5, "straggler/others": 2.25}


def _logged(*scalars):
    rows = [{"seconds/step": 1.0} | s for s in scalars]
    return [{"step": i, "generation": 0, "time_s": float(i)} | s for i, s in enumerate(rows)]


def test_the_straggler_is_that_of_the_last_line_with_an_account(file):
    devices = {"straggler": 1.0, "straggler/devices": 9.0, "straggler/others": 4.0}
    lines = _logged(devices, {}, SLOW)
    lines.append({"step": 3, "generation": 0, "time_s": 9.0, "loss": 1.0})  # no account
    found = _account(file, lines).straggler
    assert found == Straggler(process=2, activity="data", own_s=12.5, others_s=2.25)
    assert str(found) == "process 2: 12.5 s of data, the others 2.2 s"
    found = _account(file, _logged(SLOW, devices)).straggler
    assert found == Straggler(process=1, activity="devices", own_s=9.0, others_s=4.0)


def test_a_last_account_without_a_straggler_has_none(file):
    assert _account(file, _logged(SLOW, {})).straggler is None


@pytest.mark.parametrize("lost", [*SLOW, "number"])
def test_a_straggler_that_was_logged_in_part_is_none(file, lost):
    partial = {k: v for k, v in SLOW.items() if k != lost} | (
        {"straggler": None} if lost == "number" else {}
    )
    assert _account(file, _logged(SLOW, partial)).straggler is None


def test_a_straggler_without_an_account_is_none(file):
    lines = _logged(SLOW, SLOW)
    for line in lines:
        del line["seconds/step"]
    assert _account(file, lines).straggler is None
