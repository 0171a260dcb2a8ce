# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What a run survives: signals at any time, kills at any time, a full disk."""

import pytest

ALL_PHASES = ["compile", "warm-up", "evaluation", "train step", "between steps", "save"]
KILLED_IN = ["any moment", "writing", "committed", "hashing", "deleting"]


@pytest.mark.parametrize(
    "phases", [["compile", "evaluation", "save"], pytest.param(ALL_PHASES, marks=pytest.mark.slow)]
)
def test_a_signal_in_any_phase_of_training_saves_the_state(tmp_path, run_program, phases):
    lines = run_program("phases.py", tmp_path, *phases).splitlines()
    assert [line.split(":")[0].split(" during ")[1] for line in lines] == phases
    assert [line.split(": ")[1] for line in lines] == [
        f"step {2 if phase in ('evaluation', 'save') else 1} restored" for phase in phases
    ]


def check_kills(run_program, root, kills, seed):
    """A fifth of the kills has each aim."""
    *lines, last = run_program("kill.py", root, kills, seed).splitlines()
    assert last == f"{kills} kills survived, 0 durable steps lost"
    assert lines == [f"{aim}: {kills // 5}" for aim in KILLED_IN]


def test_killed_at_any_point_the_newest_committed_step_is_whole(tmp_path, run_program):
    check_kills(run_program, tmp_path, 10, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 21))
def test_killed_a_thousand_times(tmp_path, run_program, seed):
    check_kills(run_program, tmp_path, 50, seed)


def filled(run_program, root, fills, disk):
    """How many saves ended in which way."""
    lines = run_program("full_disk.py", root, fills, disk).splitlines()
    if lines == ["no permission to mount"]:
        pytest.skip("unshare --user --mount is not allowed here")
    return {name: int(count) for name, count in (line.split(": ") for line in lines)}


@pytest.mark.parametrize(
    ("disk", "fills"),
    [
        ("space", 3),
        pytest.param("space", 30, marks=pytest.mark.slow),
        pytest.param("file", 30, marks=pytest.mark.slow),
    ],
)
def test_a_full_disk_loses_nothing(tmp_path, run_program, disk, fills):
    ended = filled(run_program, tmp_path, fills, disk)
    assert sum(ended.values()) == fills
    assert ended["not committed"] >= fills // 2, ended


def test_a_disk_that_is_full_for_the_seal_is_an_error_and_the_step_stays(tmp_path, run_program):
    assert filled(run_program, tmp_path, 1, "checksums") == {"committed, no checksums": 1}
