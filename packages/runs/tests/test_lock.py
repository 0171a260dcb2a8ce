# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import errno
import fcntl
import subprocess
import sys
from contextlib import contextmanager

import pytest

from dovetail_runs.record import lock

HOLD = """
import fcntl, sys
file = open(sys.argv[1], "wb")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def _held(run):
    """Another process that holds the run. The block may kill it."""
    line = [sys.executable, "-S", "-c", HOLD, str(run / lock.FILE)]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        yield holder
        holder.kill()


def _locked(run):
    return lock.locked(run, settings_file="run.json")


def test_another_process_is_refused_until_the_first_is_dead(tmp_path):
    (tmp_path / "run.json").touch()
    assert not lock.is_locked(tmp_path)
    with _held(tmp_path):
        assert lock.is_locked(tmp_path)
        refused = r"one process at a time, got .*, which another has: wait for it, or stop it"
        with pytest.raises(RuntimeError, match=refused), _locked(tmp_path):
            pytest.fail("two processes have the run")
        assert lock.is_locked(tmp_path)  # the refusal took nothing away
        assert (tmp_path / lock.FILE).exists()
    assert not lock.is_locked(tmp_path)
    with _locked(tmp_path):
        pass


def test_a_file_system_without_locks_is_named_and_is_not_running(tmp_path, monkeypatch):
    def without(file, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    (tmp_path / lock.FILE).touch()
    monkeypatch.setattr(fcntl, "lockf", without)
    assert not lock.is_locked(tmp_path)
    refused = r"a file system with locks, got .*No locks available\): name a folder of another"
    with pytest.raises(RuntimeError, match=refused), _locked(tmp_path):
        pytest.fail("there is no lock")


def test_a_look_at_the_own_run_keeps_its_lock(tmp_path):
    """POSIX drops the locks of a process when it closes any file of theirs."""
    take = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'rb+'), fcntl.LOCK_EX|fcntl.LOCK_NB)"
    with _locked(tmp_path / "run"):
        assert not lock.is_locked(tmp_path / "run")  # it is this process
        line = [sys.executable, "-S", "-c", take, str(tmp_path / "run" / lock.FILE)]
        refused = subprocess.run(line, capture_output=True, text=True, check=False)
    assert "BlockingIOError" in refused.stderr


def test_this_process_is_refused_by_any_path_of_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "run")
    with _locked(tmp_path / "run"):
        for path in (tmp_path / "run", tmp_path / "link", tmp_path.joinpath("x", "..", "run")):
            refused = "one launch at a time, got .*, which this process has launched: end that"
            with pytest.raises(RuntimeError, match=refused), _locked(path):
                pytest.fail("two launches have the run")
    assert lock.held == set()


def test_a_block_that_leaves_no_run_leaves_no_folder(tmp_path):
    with pytest.raises(KeyError), _locked(tmp_path / "a" / "b" / "run"):
        raise KeyError("refused")
    assert list(tmp_path.iterdir()) == []
    assert lock.held == set()


def test_folders_and_files_of_others_stay(tmp_path):
    (tmp_path / "a").mkdir()
    with _locked(tmp_path / "a" / "b" / "run"):
        (tmp_path / "a" / "b" / "other").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["a", "b", "other"]
    with _locked(tmp_path / "a"):
        pass
    assert (tmp_path / "a" / "b" / "other").exists()
    assert not (tmp_path / "a" / lock.FILE).exists()


def test_a_run_keeps_its_lock_file(tmp_path):
    """Were it removed, a process that waits could lock a file without a name."""
    with _locked(tmp_path / "run"):
        (tmp_path / "run" / "run.json").touch()
    assert (tmp_path / "run" / lock.FILE).exists()
    assert not lock.is_locked(tmp_path / "run")


def test_what_is_no_folder_is_not_locked(tmp_path):
    (tmp_path / "file").touch()
    assert not lock.is_locked(tmp_path / "file")
    assert not lock.is_locked(tmp_path / "nowhere")
    assert not lock.is_locked(tmp_path)
