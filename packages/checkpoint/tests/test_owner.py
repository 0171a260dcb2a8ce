# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import dataclasses
import os
import subprocess
import sys

import pytest

from dovetail_checkpoint import owner


@pytest.fixture
def process():
    """A process that runs until its input ends."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        yield child
        child.kill()


def of(pid, **changes):
    claim = dataclasses.replace(owner.this_process(), pid=pid, started=owner.started(pid) or "")
    return dataclasses.replace(claim, **changes)


def test_an_owner_returns_from_its_text_and_says_who_it_is():
    claim = owner.this_process()
    assert owner.decode(claim.encode()) == claim
    assert claim.has_ended() is False
    assert str(claim).startswith(f"process {os.getpid()} on ")
    assert owner.this_process().token != claim.token


@pytest.mark.parametrize("text", ["", "{", "[]", '{"token": "x"}', "[" * 100_000])
def test_a_damaged_owner_is_nobody(text):
    assert owner.decode(text) is None


def test_a_process_has_ended_once_it_is_killed_though_nobody_waited_for_it(process):
    claim = of(process.pid)
    assert claim.has_ended() is False
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # leaves a zombie
    assert claim.has_ended() is True
    process.wait()
    assert claim.has_ended() is True


def test_a_number_that_is_used_again_is_another_process(process):
    assert of(process.pid, started="1").has_ended() is True


def test_a_process_of_another_machine_or_container_cannot_be_seen():
    assert of(os.getpid(), machine="elsewhere").has_ended() is None


def test_without_proc_the_number_alone_counts(process, monkeypatch, tmp_path):
    class Elsewhere(type(tmp_path)):
        def read_text(self, *args, **options):
            raise FileNotFoundError

    monkeypatch.setattr(owner, "Path", Elsewhere)
    monkeypatch.setattr(owner, "_BOOT", Elsewhere("/proc"))
    claim = of(process.pid)
    assert (claim.machine, claim.started) == (claim.host, "")
    assert claim.has_ended() is False
    process.kill()
    process.wait()
    assert claim.has_ended() is True
