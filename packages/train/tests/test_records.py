# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""How restarts are merged into one curve is in test_sinks, beside what writes them."""

import itertools

import pytest

from dovetail_train import Jsonl, read_account


def _write(path, *, at, steps, skipped=(), seconds=1.0):
    """One start: a line for each step, `seconds` apart, the first (which compiles) untimed."""
    clock = itertools.count()
    sink = Jsonl(path, now=lambda: at + seconds * next(clock))
    for i, step in enumerate(steps):
        timed = {"step_time_s": seconds} if i else {}
        sink.write(step, {"loss": 1.0, "skipped": float(step in skipped), **timed})
    return at + seconds * (len(steps) - 1)


def test_every_second_of_a_run_is_told(tmp_path):
    path = tmp_path / "metrics.jsonl"
    end = _write(path, at=100.0, steps=range(8), skipped=[2])  # killed after step 7, saved at 5
    assert end == 107.0
    end = _write(path, at=127.0, steps=range(5, 11))
    found = read_account(path)
    assert end == 132.0
    assert found.wall_s == 32.0
    assert found.idle_s == 20.0
    assert found.skipped_s == 1.0
    assert found.repeated_s == 3.0  # 5, 6 and 7 of the first start
    assert found.step_s == 3.0 + 5.0  # 1, 3, 4 and 6 to 10 of the second
    assert found.other_s == 0.0
    assert found.goodput == 8 / 32


def test_what_is_between_the_steps_is_other(tmp_path):
    path = tmp_path / "metrics.jsonl"
    clock = iter([0.0, 4.0, 9.0])
    sink = Jsonl(path, now=lambda: next(clock))
    sink.write(0, {"loss": 1.0})
    sink.write(1, {"loss": 1.0, "step_time_s": 1.0, "stall_s": 3.0})
    sink.write(2, {"eval/loss": 1.0})
    found = read_account(path)
    assert (found.wall_s, found.step_s, found.stalled_s, found.other_s) == (9.0, 1.0, 3.0, 5.0)


def test_one_line_has_no_time_and_none_is_refused(tmp_path):
    path = tmp_path / "metrics.jsonl"
    _write(path, at=5.0, steps=[0])
    assert read_account(path).goodput == 0.0
    path.write_text('{"step": 0, "gener')
    with pytest.raises(ValueError, match=r"needs a line, got none in .*metrics.jsonl; train a"):
        read_account(path)


def test_the_account_names_the_process_that_the_others_waited_for_at_last(tmp_path):
    sink = Jsonl(tmp_path / "metrics.jsonl")
    slow = {"straggler": 1, "straggler/data": 12.5, "straggler/others": 2.25}
    sink.write(4, {"seconds/step": 50.0, **slow})
    sink.write(5, {"loss": 1.0})
    found = read_account(tmp_path / "metrics.jsonl").straggler
    assert str(found) == "process 1: 12.5 s of data, the others 2.2 s"
    sink.write(8, {"seconds/step": 90.0})
    assert read_account(tmp_path / "metrics.jsonl").straggler is None
