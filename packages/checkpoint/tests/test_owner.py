# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail_checkpoint.run import owner

ROOT = Path(__file__).parent


@pytest.fixture
def process():
    """A process that runs until its input ends."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        yield child
        child.kill()


def of(pid, **changes):
    claim = dataclasses.replace(owner.this_process(ROOT), pid=pid, started=owner.started(pid) or "")
    return dataclasses.replace(claim, **changes)


def test_an_owner_returns_from_its_text_and_says_who_it_is():
    claim = owner.this_process(ROOT)
    assert owner.decode(claim.encode()) == claim
    assert claim.has_left(ROOT) is False
    assert str(claim).startswith(f"process {os.getpid()} on ")
    assert owner.this_process(ROOT).token != claim.token


@pytest.mark.parametrize("text", ["", "{", "[]", '{"token": "x"}', "[" * 100_000])
def test_a_damaged_owner_is_nobody(text):
    assert owner.decode(text) is None


def test_a_process_has_ended_once_it_is_killed_though_nobody_waited_for_it(process):
    claim = of(process.pid)
    assert claim.has_left(ROOT) is False
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # leaves a zombie
    assert claim.has_left(ROOT) is True
    process.wait()
    assert claim.has_left(ROOT) is True


def test_a_number_that_is_used_again_is_another_process(process):
    assert of(process.pid, started="1").has_left(ROOT) is True


def test_a_process_of_another_machine_or_container_cannot_be_seen():
    assert of(os.getpid(), machine="elsewhere").has_left(ROOT) is None


def test_an_owner_that_writes_elsewhere_has_left(tmp_path):
    """A root is copied or moved with the lock of a run that goes on in the first place."""
    (tmp_path / "x").mkdir()
    claim = owner.this_process(tmp_path)
    assert claim.has_left(tmp_path / "x" / "..") is False
    assert claim.has_left(tmp_path / "x") is True
    assert dataclasses.replace(claim, root=str(tmp_path / "gone")).has_left(tmp_path) is True


def test_without_proc_the_number_alone_counts(process, monkeypatch, tmp_path):
    class Elsewhere(type(tmp_path)):
        def read_text(self, *args, **options):
            raise FileNotFoundError

    monkeypatch.setattr(owner, "Path", Elsewhere)
    monkeypatch.setattr(owner, "_BOOT", Elsewhere("/proc"))
    claim = of(process.pid)
    assert (claim.machine, claim.started) == (claim.host, "")
    assert claim.has_left(ROOT) is False
    process.kill()
    process.wait()
    assert claim.has_left(ROOT) is True
