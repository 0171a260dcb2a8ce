# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A shelf below its limit: the oldest steps go first, the newest complete one never."""

import pytest

from dovetail_cluster.tier.files import Name
from dovetail_cluster.tier.folder import Folder, FullError, Key


def name(step, *, generation=0, writer=0):
    return Name(step, generation, writer, 2)


def add(folder, file, size_bytes=10):
    folder.new(file, size_bytes).write_bytes(bytes(size_bytes))
    folder.put(file)


def steps(folder):
    return [(n.generation, n.step) for n in folder.names()]


def test_two_complete_steps_are_kept_if_there_is_room(tmp_path):
    folder = Folder(tmp_path / "s", 100)
    for step in range(1, 6):
        add(folder, name(step))
        folder.complete = Key(0, step)
    assert steps(folder) == [(0, 3), (0, 4), (0, 5)]
    add(folder, name(6))
    assert steps(folder) == [(0, 4), (0, 5), (0, 6)]


def test_older_steps_make_room_but_never_the_newest_complete_one(tmp_path):
    folder = Folder(tmp_path / "s", 20)
    for step in (1, 2):
        add(folder, name(step))
    folder.complete = Key(0, 2)
    add(folder, name(3))
    assert steps(folder) == [(0, 2), (0, 3)]
    message = r"below limit_bytes=20, got 20 bytes in use and 5 more; write limit_bytes=50"
    with pytest.raises(FullError, match=message):
        folder.new(name(4), 5)
    assert steps(folder) == [(0, 2), (0, 3)]


def test_room_that_is_promised_counts(tmp_path):
    folder = Folder(tmp_path / "s", 20)
    folder.new(name(1), 12)
    with pytest.raises(FullError):
        folder.new(name(1, writer=1), 12)
    folder.drop(name(1))
    folder.new(name(1, writer=1), 12)


def test_after_a_step_back_the_steps_of_older_generations_are_old(tmp_path):
    folder = Folder(tmp_path / "s", 100)
    add(folder, name(50))
    add(folder, name(45))
    folder.complete = Key(0, 45)  # restored, as 50 was not whole elsewhere
    add(folder, name(46, generation=1))
    assert (0, 45) in steps(folder)
    folder.complete = Key(1, 46)
    add(folder, name(47, generation=1))
    assert steps(folder) == [(1, 46), (1, 47), (0, 50)]
    folder.complete = Key(0, 45)  # a late word
    assert folder.complete == Key(1, 46)


def test_half_written_files_of_a_killed_rank_go(tmp_path):
    folder = Folder(tmp_path / "s", 100)
    add(folder, name(1))
    folder.new(name(2), 10).touch()
    assert steps(Folder(tmp_path / "s", 100)) == [(0, 1)]
    assert [path.name for path in (tmp_path / "s").iterdir()] == ["1.0.0.2"]
