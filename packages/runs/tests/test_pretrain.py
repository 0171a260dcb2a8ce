# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A run that `dovetail train pretrain` wrote with the record of dovetail_stack: fixtures/pretrain.

It was launched for 10 steps, again for 20, was killed after step 13, and was finished. Expected
numbers are those of dovetail_train.read_jsonl and read_account.
"""

from pathlib import Path

import numpy as np
import pytest

from dovetail_runs import Run, summary


@pytest.fixture
def run():
    return Run(Path(__file__).parent / "fixtures" / "pretrain")


def test_its_record_reads(run):
    assert (run.recipe, run.state, run.damage) == ("pretrain", "finished", [])
    assert run.settings["shape"]["embed"] == 16
    assert [event["event"] for event in run.events] == ["start", "end", "start", "start", "end"]
    assert [event.get("changes") for event in run.launches] == [None, {"steps": [10, 20]}, None]
    assert run.launches[0]["seeds"] == {"seed": 3}
    assert (run.notes, run.tags) == ([], [])


def test_its_curves_are_merged_over_three_launches(run):
    assert np.unique(run.metrics.lines.generations).tolist() == [0, 1, 2]
    losses, evaluations = run.metrics.curve("loss"), run.metrics.curve("eval/loss")
    assert losses.steps.tolist() == list(range(20))
    assert losses.values[[0, 9, 10, 19]].tolist() == [
        *(5.699436664581299, 5.521878242492676, 5.599783897399902, 5.15751838684082)
    ]
    # That of step 10 is the first launch's: the others went on from what was saved there.
    assert evaluations.steps.tolist() == [*range(1, 11), 12, 14, 16, 18, 20]
    assert evaluations.values[9] == 5.51677531003952


def test_its_row(run):
    row = summary(run)
    assert (row.step, row.steps, row.window) == (20, 20, 20)
    # Sums in another order differ by 20 roundings.
    assert row.mean_loss == pytest.approx(5.495586109161377, rel=20 * 2**-53)
    assert row.evaluations == {
        "eval/bits_per_byte": (20, 5.235897022969014),
        "eval/loss": (20, 5.2453964948654175),
    }
    assert row.goodput == 0.020235501607791723  # as the trainer logged it


def test_its_account(run):
    account = run.account
    # Sums of 65 lines: in another order they differ by as many roundings.
    near = {"rel": 65 * 2**-53}
    assert account.wall_s == pytest.approx(48.61234450340271, **near)
    assert account.step_s == pytest.approx(0.04828847499902622, **near)
    assert account.repeated_s == pytest.approx(0.02959898900007829, **near)
    assert account.stalled_s == pytest.approx(0.01583657000128369, **near)
    assert account.idle_s == pytest.approx(43.031444787979126, **near)
    assert (account.skipped_s, account.clock_back_s, account.straggler) == (0.0, 0.0, None)
