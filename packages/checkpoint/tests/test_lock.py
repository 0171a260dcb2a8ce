# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import dataclasses
import os
import shutil
import subprocess
import sys
import threading
import time

import pytest

from dovetail_checkpoint.run import lock, owner
from dovetail_checkpoint.run.lock import LOCK, WriterLock

HANG_S = 300


@pytest.fixture
def held(tmp_path):
    """A lock of this process, given up at the end."""
    ours = WriterLock(tmp_path)
    yield ours
    ours.release()


def put(root, claim, *, beat_s=0.0):
    """Writes the lock of another process, whose last heartbeat was `beat_s` ago."""
    (root / LOCK).mkdir()
    file = root / LOCK / f"{claim.token}.json"
    file.write_text(claim.encode())
    now_s = file.stat().st_mtime
    os.utime(file, (now_s - beat_s, now_s - beat_s))
    return file


def ended(root):
    """A process of this machine that has ended."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return dataclasses.replace(owner.this_process(root), pid=child.pid, started="1")


def elsewhere(root):
    return dataclasses.replace(owner.this_process(root), machine="elsewhere", host="far")


def names(root):
    return sorted(path.name for path in root.iterdir())


def test_a_lock_names_its_owner_and_goes(tmp_path, held):
    held.hold()
    held.hold()  # it has it already
    assert held.is_held()
    (file,) = (tmp_path / LOCK).iterdir()
    claim = owner.decode(file.read_text())
    assert (claim.pid, claim.token) == (os.getpid(), file.stem)
    held.release()
    assert not held.is_held()
    assert names(tmp_path) == []


def test_a_second_writer_is_refused_and_told_who_writes(tmp_path, held):
    held.hold()
    with pytest.raises(
        RuntimeError,
        match=rf"must have one writer, got {tmp_path}, to which process {os.getpid()} on .* since "
        r"\d.* writes; wait until .* another root",
    ):
        WriterLock(tmp_path).hold()
    assert held.is_held()
    assert names(tmp_path) == [LOCK]


def test_the_lock_of_an_ended_process_is_taken_over_and_said(tmp_path, held, caplog):
    claim = ended(tmp_path)
    put(tmp_path, claim)
    held.hold()
    assert held.is_held()
    assert f"takes over from process {claim.pid} on " in caplog.text
    assert names(tmp_path) == [LOCK]


def test_a_lock_that_was_copied_with_its_root_is_nobodys(tmp_path, caplog):
    run, copy = WriterLock(tmp_path / "run"), WriterLock(tmp_path / "copy")
    (tmp_path / "run").mkdir()
    run.hold()
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    copy.hold()
    assert "takes over from process" in caplog.text
    assert run.is_held()
    assert copy.is_held()
    run.release()
    copy.release()


def test_without_heartbeat_another_machines_lock_is_taken_over(tmp_path, held, caplog):
    put(tmp_path, elsewhere(tmp_path), beat_s=lock.STALE_S + 1)
    held.hold()
    assert "takes over from process" in caplog.text


def test_a_heartbeat_keeps_another_machines_lock(tmp_path, held, monkeypatch):
    file = put(tmp_path, elsewhere(tmp_path), beat_s=lock.STALE_S / 2)
    monkeypatch.setattr(lock.time, "sleep", lambda _: os.utime(file))
    with pytest.raises(RuntimeError, match=r"one writer, got .* on far"):
        held.hold()
    assert not held.is_held()
    assert file.exists()


class FakeClock:
    """Time that passes in `sleep` alone."""

    def __init__(self):
        self.now_s = 0.0

    def monotonic(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds


@pytest.mark.parametrize("beat_s", [0.0, 20.0, -10_000.0])
def test_a_heartbeat_that_ends_is_waited_for(tmp_path, held, monkeypatch, beat_s):
    put(tmp_path, elsewhere(tmp_path), beat_s=beat_s)
    clock = FakeClock()
    monkeypatch.setattr(lock, "time", clock)
    held.hold()
    left_s = lock.STALE_S - max(beat_s, 0.0)  # a beat in the future counts as one of now
    assert left_s <= clock.now_s <= left_s + 1.0


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b'{"pid": 1'])
def test_a_damaged_owner_is_judged_by_its_heartbeat(tmp_path, held, content):
    file = put(tmp_path, elsewhere(tmp_path))
    file.write_bytes(content)
    os.utime(file, (1, 1))
    held.hold()
    assert held.is_held()


def test_a_lock_that_is_given_up_while_it_is_looked_at_is_free(tmp_path, held, monkeypatch):
    file = put(tmp_path, elsewhere(tmp_path))

    def give_up(_):
        file.unlink()
        file.parent.rmdir()

    monkeypatch.setattr(lock.time, "sleep", give_up)
    held.hold()
    assert held.is_held()


def test_of_two_that_take_over_at_once_one_wins(tmp_path, held, monkeypatch):
    """The slower renames the lock of the faster away, sees it, and puts it back."""
    put(tmp_path, ended(tmp_path))
    faster, look = WriterLock(tmp_path), WriterLock._look

    def look_late(self):
        seen = look(self)
        if self is held and not faster.is_held():
            faster.hold()
        return seen

    monkeypatch.setattr(WriterLock, "_look", look_late)
    with pytest.raises(RuntimeError, match="one writer"):
        held.hold()
    assert faster.is_held()
    assert names(tmp_path) == [LOCK]
    faster.release()


@pytest.mark.thorough
def test_of_many_at_once_one_holds(tmp_path):
    for _ in range(20):
        locks = [WriterLock(tmp_path) for _ in range(8)]
        begin, holding, refused = threading.Barrier(len(locks)), [], []

        def take(one, begin=begin, holding=holding, refused=refused):
            begin.wait()
            try:
                one.hold()
                holding.append(one)
            except RuntimeError as error:
                refused.append(error)

        threads = [threading.Thread(target=take, args=(one,)) for one in locks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(holding), len(refused)) == (1, 7)
        holding[0].release()
        assert names(tmp_path) == []


def test_a_lock_that_was_lost_is_not_given_up_for_its_new_owner(tmp_path, held):
    held.hold()
    (tmp_path / LOCK).rename(tmp_path / "gone")
    put(tmp_path, elsewhere(tmp_path))
    assert not held.is_held()
    held.release()
    assert len(names(tmp_path / LOCK)) == 1


def test_a_lock_whose_root_was_emptied_is_taken_again(tmp_path, held):
    held.hold()
    (tmp_path / LOCK).rename(tmp_path.parent / f"{tmp_path.name}-moved")
    assert not held.is_held()
    held.hold()
    assert held.is_held()


def test_the_heart_beats(tmp_path, held, monkeypatch):
    monkeypatch.setattr(lock, "BEAT_S", 0.01)
    held.hold()
    (file,) = (tmp_path / LOCK).iterdir()
    os.utime(file, (1, 1))
    limit = time.monotonic() + HANG_S
    while file.stat().st_mtime == 1:
        assert time.monotonic() < limit
        time.sleep(0.01)


def test_claims_of_killed_processes_are_swept_once_they_are_old(tmp_path, held):
    for name in ("old", "new"):
        (tmp_path / f"{LOCK}.{name}").mkdir()
    os.utime(tmp_path / f"{LOCK}.old", (1, 1))
    held.hold()
    assert names(tmp_path) == [LOCK, f"{LOCK}.new"]


def test_a_root_that_cannot_be_written_is_an_error_of_the_system(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="Not a directory"):
        WriterLock(tmp_path / "file").hold()


def test_a_lock_that_is_no_directory_of_ours_is_named(tmp_path, held):
    (tmp_path / LOCK / "folder").mkdir(parents=True)
    with pytest.raises(RuntimeError, match=r"must be free or name its owner, got neither.*delete"):
        held.hold()
