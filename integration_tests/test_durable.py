# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A file or a directory is on the disk whole, or not there: _durable.py, which packages copy."""

import errno
import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import copies
from workspace import ROOT

FILE = ROOT / copies.SHARED / "_durable.py"


@pytest.fixture
def durable():
    spec = importlib.util.spec_from_file_location("durable", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_directory_appears_at_the_end(durable, tmp_path):
    target = tmp_path / "deep" / "out"
    with durable.new_directory(target) as partial:
        (partial / "inner").mkdir()
        (partial / "inner" / "file").write_text("whole")
        assert not target.exists()
    assert (target / "inner" / "file").read_text() == "whole"
    assert list(target.parent.iterdir()) == [target]


def test_an_empty_directory_may_be_filled(durable, tmp_path):
    (tmp_path / "out").mkdir()
    with durable.new_directory(tmp_path / "out") as partial:
        (partial / "file").write_text("whole")
    assert (tmp_path / "out" / "file").read_text() == "whole"


def test_an_error_leaves_nothing(durable, tmp_path):
    def failing():
        with durable.new_directory(tmp_path / "out") as partial:
            (partial / "file").write_text("half")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        failing()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["directory", "file", "dangling link"])
def test_what_is_there_is_refused_before_work_and_stays(durable, tmp_path, kind):
    target = tmp_path / "out"
    match kind:
        case "directory":
            target.mkdir()
            (target / "mine").write_text("")
        case "file":
            target.write_text("mine")
        case _:
            target.symlink_to(tmp_path / "gone")
    with (
        pytest.raises(FileExistsError, match=r"must be new, got .*/out', which is in use; give"),
        durable.new_directory(target),
    ):
        pytest.fail("began to write")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_of_two_at_once_the_later_is_refused(durable, tmp_path):
    def first():
        with durable.new_directory(tmp_path / "out") as partial:
            (partial / "file").write_text("first")
            with durable.new_directory(tmp_path / "out") as other:
                (other / "file").write_text("second")

    with pytest.raises(FileExistsError, match="which another process wrote meanwhile"):
        first()
    assert (tmp_path / "out" / "file").read_text() == "second"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("number", "error", "message"),
    [
        (errno.EBUSY, FileExistsError, "out', which is a mount point; give a directory in it"),
        (errno.ENOTDIR, FileExistsError, "which another process wrote meanwhile"),
        (errno.EACCES, PermissionError, "Permission denied"),
    ],
)
def test_a_rename_that_fails_says_why(durable, tmp_path, monkeypatch, number, error, message):
    def failing(path, target):
        raise OSError(number, os.strerror(number))

    (tmp_path / "out").mkdir()
    monkeypatch.setattr(durable.Path, "rename", failing)
    with pytest.raises(error, match=message), durable.new_directory(tmp_path / "out"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("content", ["ünicode\n", b"\xff\x00"])
def test_a_file_replaces_an_old_one(durable, tmp_path, content):
    path = tmp_path / "file"
    path.write_text("old")
    durable.write_file(path, content)
    assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_keeps_the_old_file(durable, tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    path = tmp_path / "file"
    path.write_text("old")
    monkeypatch.setattr(durable.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        durable.write_file(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.fixture
def synced(durable, monkeypatch):
    """The paths that were synced, in order."""
    paths, fsync = [], os.fsync

    def noted(descriptor):
        paths.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(durable.os, "fsync", noted)
    return paths


def test_all_is_synced_before_it_is_renamed(durable, tmp_path, synced):
    with durable.new_directory(tmp_path / "out") as partial:
        (partial / "inner").mkdir()
        (partial / "inner" / "file").write_text("whole")
    inside = [path for path in synced if ".partial" in path]
    assert {Path(path).name for path in inside} >= {"file", "inner", partial.name}
    assert synced[len(inside) :] == [str(tmp_path)]


@pytest.mark.parametrize("there", [(), ("repo",), ("repo", "tanh")])
def test_parents_that_were_created_are_synced_in_theirs(
    durable, tmp_path, synced, monkeypatch, there
):
    tmp_path.joinpath(*there).mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(tmp_path)
    with durable.new_directory(Path("repo/tanh/1")):
        pass
    # `1` is a name in tanh, tanh one in repo, repo one in the first directory.
    places = [tmp_path / "repo" / "tanh", tmp_path / "repo", tmp_path]
    outside = [path for path in synced if ".partial" not in path]
    assert outside == [str(place) for place in places[: 3 - len(there)]]


KILLED = """
import os, runpy, signal, sys
from pathlib import Path
durable = runpy.run_path(sys.argv[1])
target, at = Path(sys.argv[2]), int(sys.argv[3])
calls = 0
def counted(function):
    def call(*args):
        global calls
        if calls == at:
            os.kill(os.getpid(), signal.SIGKILL)
        calls += 1
        return function(*args)
    return call
os.fsync = counted(os.fsync)
Path.rename = counted(Path.rename)
Path.replace = counted(Path.replace)
with durable["new_directory"](target / "out") as partial:
    (partial / "file").write_text("whole")
durable["write_file"](target / "out" / "file", "new")
print("done")
"""


def test_killed_at_any_call_all_is_whole_or_absent(tmp_path):
    for at in range(20):
        target = tmp_path / str(at)
        command = [sys.executable, "-c", KILLED, str(FILE), str(target), str(at)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if (target / "out").exists():
            assert [p.name for p in (target / "out").iterdir() if p.name[0] != "."] == ["file"]
            assert (target / "out" / "file").read_text() in ("whole", "new")
        if done.stdout == "done\n":
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
    assert at >= 6  # the bytes and names of the directory, its rename, the file's bytes and rename
