# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What a run survives: signals and kills at any time, a full disk, other processes, bad files."""

import builtins
import errno
import io
import os
from pathlib import Path

import jax.numpy as jnp
import pytest

from dovetail_checkpoint import Best, Retention, Store, verify
from dovetail_checkpoint.run import reading

ALL_PHASES = ["compile", "warm-up", "evaluation", "train step", "between steps", "save"]
KILLED_IN = ["any moment", "writing", "committed", "hashing", "deleting"]


@pytest.mark.thorough
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


@pytest.mark.thorough("it kills processes")
@pytest.mark.capability("a kill at any point of a save")
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


@pytest.mark.capability("a full disk during a save")
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


@pytest.mark.thorough
def test_a_disk_that_is_full_for_the_seal_is_an_error_and_the_step_stays(tmp_path, run_program):
    assert filled(run_program, tmp_path, 1, "checksums") == {"committed, no checksums": 1}


def counts(run_program, *args):
    """The counts that a program prints, by name."""
    lines = run_program(*args).splitlines()
    return {name: int(count) for name, count in (line.rsplit(": ", 1) for line in lines)}


@pytest.mark.thorough
def test_old_steps_that_cannot_be_deleted_never_end_a_run(tmp_path, run_program):
    ended = counts(run_program, "undeleted.py", tmp_path / "run", 20, 0)
    assert ended.pop("wrong") == 0
    assert sum(ended.values()) == 20
    assert min(ended.values()) >= 2, ended


@pytest.mark.thorough
def test_a_reader_beside_a_writer_gets_whole_steps(tmp_path, run_program):
    ended = counts(run_program, "beside.py", tmp_path, 20)
    del ended["listed again"]
    assert ended == {"whole": 20, "wrong": 0, "called damaged": 0}


@pytest.mark.thorough
def test_of_two_writers_one_is_refused_and_follows_the_other(tmp_path, run_program):
    assert counts(run_program, "two_writers.py", tmp_path, 20, 0) == {
        "taken over from a closed store": 16,
        "taken over from a killed writer": 4,
    }


@pytest.mark.thorough
@pytest.mark.parametrize("step", [None, 7])
def test_a_step_that_is_deleted_while_it_is_read_is_not_damaged(tmp_path, monkeypatch, step):
    """A run with Retention(latest=1) commits step 8 and deletes step 7 under the reader."""
    x = jnp.arange(6.0)
    with Store(tmp_path) as store:
        store.save(7, item=x)
    read = reading.read

    def read_late(root, number, targets, **options):
        if number == 7:
            with Store(tmp_path, retention=Retention(latest=1)) as writer:
                writer.save(8, item=x * 2)
        return read(root, number, targets, **options)

    monkeypatch.setattr(reading, "read", read_late)
    reader = Store(tmp_path)
    if step is None:
        number, items = reader.restore(item=x)
        assert (number, items["item"].tolist()) == (8, (x * 2).tolist())
        assert [tried.step for tried in reader.report.steps] == [8]
    else:
        with pytest.raises(ValueError, match=r"was saved, got step=7 .* has \[8\]; use step=8"):
            reader.restore(step=7, item=x)
    assert (tmp_path / "8").exists()


def test_steps_that_are_deleted_faster_than_read_are_an_error(tmp_path, monkeypatch):
    x = jnp.arange(6.0)
    with Store(tmp_path) as store:
        store.save(1, item=x)
    read = reading.read

    def read_late(root, number, targets, **options):
        (tmp_path / str(number)).rename(tmp_path / str(number + 1))
        return read(root, number, targets, **options)

    monkeypatch.setattr(reading, "read", read_late)
    with pytest.raises(RuntimeError, match=r"must stay until.*got 20 steps.*Retention\(latest="):
        Store(tmp_path).restore(item=x)


@pytest.mark.thorough
@pytest.mark.parametrize("depth", [400, 990, 100_000])
@pytest.mark.parametrize("name", ["dovetail/data.json", "data/data.json", "_CHECKPOINT_METADATA"])
def test_a_record_that_is_nested_too_deeply_is_damaged(tmp_path, position, name, depth):
    data = position(1)
    with Store(tmp_path, checksums=False) as store:
        for step in (1, 2):
            store.save(step, metrics={"loss": 1.0}, item=jnp.ones(3), data=data)
    (tmp_path / "2" / name).write_text("[" * depth + "]" * depth)
    store = Store(tmp_path, retention=Retention(latest=1, best=Best("loss", mode="min")))
    assert store.restore(item=jnp.ones(3), data=data)[0] == 1
    assert store.report.steps[0].problems
    assert not verify(tmp_path).steps[0].verified
    with store:
        store.save(3, metrics={"loss": 2.0}, item=jnp.ones(3))


@pytest.mark.thorough
def test_a_directory_that_may_not_be_read_falls_back(tmp_path, monkeypatch):
    """As root every directory may be read, so the system's answer is put in its place."""
    x = jnp.ones(3)
    with Store(tmp_path) as store:
        for step in (1, 2):
            store.save(step, item=x)
    closed = tmp_path / "2"

    def deny(owner, name):
        call = getattr(owner, name)

        def denied(path, *args, **options):
            inside = not isinstance(path, int) and closed in (Path(path), *Path(path).parents)
            if inside and (name == "scandir" or Path(path) != closed):
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return call(path, *args, **options)

        monkeypatch.setattr(owner, name, denied)

    for owner, name in ((os, "stat"), (os, "scandir"), (io, "open"), (builtins, "open")):
        deny(owner, name)
    store = Store(tmp_path, retention=Retention(latest=1, best=Best("loss", mode="min")))
    assert store.restore(item=x)[0] == 1
    assert "Permission denied" in str(store.report.steps[0].problems)
    assert not verify(tmp_path).steps[0].verified
    with store:
        store.save(3, metrics={"loss": 2.0}, item=x)
    assert [step.step for step in store.steps() if step.has_checksums] == [3]
