# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_checkpoint import Keep, keep, seal


def make(root: Path, step: int, *, sealed: bool = True) -> None:
    (root / str(step)).mkdir(parents=True)
    (root / str(step) / "file").write_text(str(step))
    if sealed:
        seal.write(root / str(step))


def test_the_newest_stay(tmp_path):
    for step in (10, 9, 100, 20):
        make(tmp_path, step)
    keep.retain(tmp_path, Keep(latest=2), damaged=(), sealed_only=True)
    assert keep.committed_steps(tmp_path) == [20, 100]


def test_nothing_goes_before_enough_are_sealed(tmp_path):
    make(tmp_path, 1)
    make(tmp_path, 2, sealed=False)
    keep.retain(tmp_path, Keep(latest=2), damaged=(), sealed_only=True)
    assert keep.committed_steps(tmp_path) == [1, 2]


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.booleans(), st.booleans()),
        unique_by=lambda x: x[0],
        max_size=12,
    ),
    st.integers(1, 4),
)
def test_over_any_sequence_of_saves_the_last_good_steps_stay(saves, latest):
    with tempfile.TemporaryDirectory() as directory:
        root, damaged = Path(directory), set()
        for step, sealed, is_damaged in saves:
            before = keep.committed_steps(root)
            make(root, step, sealed=sealed)
            if is_damaged:
                damaged.add(step)
            good = [s for s in (*before, step) if s not in damaged and seal.exists(root / str(s))]
            keep.retain(root, Keep(latest=latest), damaged=damaged, sealed_only=True)
            after = keep.committed_steps(root)
            assert damaged & {*before, step} <= set(after)
            assert set(sorted(good)[-latest:]) <= set(after)
            gone = {*before, step} - set(after)
            assert all(sum(g > s for g in after if g not in damaged) >= latest for s in gone)


def test_an_interrupted_deletion_leaves_no_step(tmp_path, monkeypatch):
    make(tmp_path, 1)

    def interrupted(path):
        raise KeyboardInterrupt

    monkeypatch.setattr(keep.shutil, "rmtree", interrupted)
    with pytest.raises(KeyboardInterrupt):
        keep.delete(tmp_path, 1)
    monkeypatch.undo()
    assert keep.committed_steps(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == ["1.dovetail-deleting"]
    keep.delete_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_leftovers_are_those_of_saves_and_deletions_alone(tmp_path):
    names = ["7.orbax-checkpoint-tmp", "7.orbax-checkpoint-tmp-12", "8.dovetail-deleting"]
    others = ["7", "notes", "7.dovetail-damaged-0", "x.orbax-checkpoint-tmp", "007"]
    for name in names + others:
        (tmp_path / name).mkdir()
    keep.delete_leftovers(tmp_path, step=8)
    assert {path.name for path in tmp_path.iterdir()} == {*names, *others} - {names[2]}
    keep.delete_leftovers(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(others)
    assert keep.committed_steps(tmp_path) == [7]


def test_a_leftover_that_still_fills_waits_for_the_next_time(tmp_path, monkeypatch, caplog):
    # What rmtree meets when another thread writes into the directory that it empties.
    leftover = tmp_path / "7.orbax-checkpoint-tmp"
    leftover.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(keep.shutil, "rmtree", lambda path: path.rmdir())
        (leftover / "late").touch()
        keep.delete_leftovers(tmp_path)
    assert f"{leftover} stays for now" in caplog.text
    keep.delete_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_damaged_steps_are_set_aside_one_after_another(tmp_path):
    for _ in range(2):
        make(tmp_path, 5)
        keep.set_aside(tmp_path, 5)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "5.dovetail-damaged-0",
        "5.dovetail-damaged-1",
    ]


def test_no_root_is_no_step(tmp_path):
    assert keep.committed_steps(tmp_path / "none") == []


def test_keeping_nothing_is_refused():
    with pytest.raises(ValueError, match=r"at least one step, got latest=0; use latest=1"):
        Keep(latest=0)
