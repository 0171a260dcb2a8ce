# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import math
import os

import pytest

from dovetail_runs import summary


def test_a_new_run_has_unknown_values(written):
    row = summary(written("r"))
    assert (row.recipe, row.state, row.tags, row.step, row.steps) == (None, "new", (), 0, None)
    assert (row.window, row.mean_loss, row.tokens_per_s, row.stalled) == (0, None, None, None)
    assert (row.goodput, row.evaluations) == (None, {})


def test_the_loss_is_a_mean_and_the_rate_a_median_of_the_last_updates(written):
    losses = [100.0] * 50 + [3.0, 1.0] * 50 + [77.0]
    rates = [7.0] * 50 + [8e3] * 99 + [2e6, 0.5]
    lines = [
        {"step": i, "loss": x, "tokens_per_s": r, "step_time_s": 3.0, "stall_s": 1.0}
        for i, (x, r) in enumerate(zip(losses, rates, strict=True))
    ]
    lines[150]["skipped"] = 1.0
    lines[120]["loss"] = "nan"  # one that is not finite is no update: the window has another
    lines[49]["loss"] = 5.0
    row = summary(written("r", lines, recipe="x", settings={"duration": {"steps": 200}}))
    assert (row.recipe, row.step, row.steps, row.window) == ("x", 151, 200, 100)
    assert row.mean_loss == (5.0 + 49 * 3.0 + 50 * 1.0) / 100
    assert row.tokens_per_s == 8e3
    assert row.stalled == 0.25


@pytest.mark.parametrize(
    "settings, steps",
    [
        ({"steps": 9}, 9),
        ({"a": {"b": {"steps": 9}}}, 9),
        ({"steps": 9, "a": {"steps": 8}}, None),
        ({"steps": None}, None),
        ({"steps": "many"}, None),
        ({"n_steps": 9}, None),
    ],
)
def test_the_planned_steps_are_the_setting_of_that_name(written, settings, steps):
    assert summary(written("r", settings=settings)).steps == steps


def test_without_a_loss_the_steps_count_from_the_last_line(written):
    assert summary(written("r", [{"step": 7, "accuracy": 0.5}, {"step": 3, "x": 1.0}])).step == 8


def test_an_evaluation_after_the_last_update_is_no_update(written):
    row = summary(written("r", [{"step": 0, "loss": 1.0}, {"step": 1, "eval/loss": 3.0}]))
    assert row.step == 1
    assert row.evaluations == {"eval/loss": (1, 3.0)}


def test_evaluations_are_the_last_finite_ones_by_name(written):
    lines = [
        {"step": 1, "eval/b": 3.0, "eval/a": 1.0},
        {"step": 2, "eval/b": 2.0, "eval/a": "nan", "eval/c": "inf"},
        {"step": 3, "evaluation": 9.0},
    ]
    row = summary(written("r", lines))
    assert list(row.evaluations.items()) == [("eval/a", (1, 1.0)), ("eval/b", (2, 2.0))]


def test_goodput_is_as_logged_or_that_of_the_account(written):
    lines = [{"step": i, "loss": 1.0, "step_time_s": 0.25} for i in range(5)]
    assert summary(written("account", lines)).goodput == 5 * 0.25 / 4.0
    lines[1]["goodput"] = 0.5
    assert summary(written("logged", lines)).goodput == 0.5
    lines[2]["goodput"] = math.nan
    assert summary(written("nan", lines)).goodput == 0.5


def test_a_run_was_updated_when_its_newest_file_was(written):
    run = written("r", [{"step": 0}])
    for age, name in enumerate(("metrics.jsonl", "launches.jsonl", "run.json")):
        os.utime(run.path / name, (0, 1_700_000_000 - age))
    assert summary(run).updated == 1_700_000_000
    run.note("x")
    os.utime(run.path / "notes.jsonl", (0, 1_800_000_000))
    assert summary(run).updated == 1_800_000_000
