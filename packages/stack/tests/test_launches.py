# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json
import logging
import subprocess
import sys
from importlib import metadata

import jax
import pytest

from dovetail_stack import launches
from dovetail_train import make_mesh

COMMAND = ["train", "pretrain", "--out", "a run"]


def _recorded(run):
    mesh = make_mesh(data=1, devices=jax.devices()[:1])
    return launches.recorded(run, command=COMMAND, seeds={"seed": 3}, mesh=mesh)


def test_a_start_and_its_end_are_recorded(tmp_path):
    with _recorded(tmp_path) as record:
        (begun,) = launches.read(tmp_path)
        record.finished = True
    begun_again, ended = launches.read(tmp_path)
    assert begun == begun_again
    assert begun["command"] == "dovetail train pretrain --out 'a run'"
    assert begun["seeds"] == {"seed": 3}
    assert begun["devices"] == {"platform": "cpu", "kind": "cpu", "count": 1, "mesh": {}}
    assert begun["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    named = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "dovetail-train")
    assert {n: begun["versions"][n] for n in named} == {n: metadata.version(n) for n in named}
    assert "jaxtyping" not in begun["versions"]
    assert begun["git"].keys() == {"directory", "code"}
    assert begun["time"].endswith("Z")
    assert (ended["event"], ended["outcome"]) == ("end", "finished")


def test_a_start_of_a_job_has_its_number_and_leaves_the_lock_to_the_command(tmp_path):
    mesh = make_mesh(data=1, devices=jax.devices()[:1])
    options = {"command": COMMAND, "seeds": {}, "mesh": mesh}
    with launches.recorded(tmp_path, **options, generation=3):
        assert launches.read(tmp_path)[0]["generation"] == 3
        assert not (tmp_path / launches.LOCK).exists()
    with _recorded(tmp_path):
        assert "generation" not in launches.read(tmp_path)[-1]


def test_no_value_of_the_environment_is_recorded(tmp_path, monkeypatch):
    monkeypatch.setenv("API_TOKEN", "s3cr3t-value")
    with _recorded(tmp_path):
        pass
    assert "s3cr3t-value" not in (tmp_path / launches.FILE).read_text()


def test_an_interruption_and_a_failure_are_recorded_as_such(tmp_path):
    with _recorded(tmp_path):
        pass
    with pytest.raises(ValueError, match="a disk"), _recorded(tmp_path):
        raise ValueError("a disk is full\nsecond line")
    with pytest.raises(KeyboardInterrupt), _recorded(tmp_path):
        raise KeyboardInterrupt
    ends = [event for event in launches.read(tmp_path) if event["event"] == "end"]
    assert [end["outcome"] for end in ends] == ["interrupted", "failed", "failed"]
    assert [end.get("error") for end in ends] == [None, "a disk is full", "KeyboardInterrupt"]


def test_other_versions_are_warned_of_in_one_line(tmp_path, caplog):
    with _recorded(tmp_path):
        pass
    path = tmp_path / launches.FILE
    first, end = path.read_text().splitlines()
    event = json.loads(first)
    event["versions"] |= {"jax": "0.0.1", "jax-rocm7-plugin": "9"}
    path.write_text(json.dumps(event) + "\n" + end + "\n")
    with caplog.at_level(logging.WARNING), _recorded(tmp_path):
        pass
    (message,) = [record.getMessage() for record in caplog.records]
    assert f"jax 0.0.1 is now {metadata.version('jax')}" in message
    assert "jax-rocm7-plugin 9 is now none" in message
    assert "\n" not in message
    assert "flax" not in message


def test_the_same_versions_say_nothing(tmp_path, caplog):
    for _ in range(2):
        with caplog.at_level(logging.WARNING), _recorded(tmp_path):
            pass
    assert caplog.records == []


def test_a_torn_last_line_is_left_out_and_cut_off(tmp_path):
    with _recorded(tmp_path):
        pass
    path = tmp_path / launches.FILE
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"event": "sta')
    assert len(launches.read(tmp_path)) == 2
    with _recorded(tmp_path):
        pass
    assert path.read_bytes().startswith(whole + b'{"event": "start", "time"')
    assert len(launches.read(tmp_path)) == 4


@pytest.mark.parametrize("line", ["{", "[]", '{"event": "start"}'])
def test_another_damaged_line_is_named(tmp_path, line):
    (tmp_path / launches.FILE).write_text(f'{{"event": "end", "time": ""}}\n{line}\n')
    with pytest.raises(
        ValueError, match=r"each line must be an event .*launches\.jsonl:2: .* remove"
    ):
        launches.read(tmp_path)


HOLDER = """
import fcntl, pathlib, sys
file = pathlib.Path(sys.argv[1]).open("wb")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_process_is_refused_until_the_first_is_dead(tmp_path):
    assert not launches.is_running(tmp_path)
    line = [sys.executable, "-c", HOLDER, str(tmp_path / launches.LOCK)]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        assert launches.is_running(tmp_path)
        refused = r"one process at a time, got .* which another has: wait for it, or stop it"
        with pytest.raises(RuntimeError, match=refused), _recorded(tmp_path):
            pass
        holder.kill()
    assert not launches.is_running(tmp_path)
    with _recorded(tmp_path):
        pass
    assert len(launches.read(tmp_path)) == 2


def test_a_look_at_the_own_run_keeps_its_lock(tmp_path):
    """POSIX drops the locks of a process when it closes any file of theirs."""
    program = (
        "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'wb'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    )
    line = [sys.executable, "-c", program, str(tmp_path / "run" / launches.LOCK)]
    with launches.locked(tmp_path / "run"):
        assert not launches.is_running(tmp_path / "run")  # it is this process
        refused = subprocess.run(line, capture_output=True, text=True, check=False)
        assert "BlockingIOError" in refused.stderr
    assert not (tmp_path / "run").exists()  # nothing came of it


# The commit of a directory.


def _git(folder, *line):
    done = subprocess.run(["git", "-C", folder, *line], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path):
    _git(tmp_path, "init", "--quiet")
    for name, value in {"user.name": "T", "user.email": "t@example.org"}.items():
        _git(tmp_path, "config", name, value)
    (tmp_path / "code.py").write_text("x = 1\n")
    _git(tmp_path, "add", "--all")
    _git(tmp_path, "-c", "commit.gpgsign=false", "commit", "--quiet", "--message", "First")
    return tmp_path


def test_a_clean_repository_and_a_changed_one(repository):
    commit = _git(repository, "rev-parse", "HEAD")
    assert launches.commit_of(repository) == {"commit": commit, "dirty": False}
    (repository / "new.txt").write_text("not tracked, so no change")
    assert launches.commit_of(repository) == {"commit": commit, "dirty": False}
    (repository / "code.py").write_text("x = 2\n")
    assert launches.commit_of(repository) == {"commit": commit, "dirty": True}


def test_no_repository_and_no_commit_are_no_failure(tmp_path):
    assert launches.commit_of(tmp_path) is None
    _git(tmp_path, "init", "--quiet")
    assert launches.commit_of(tmp_path) is None
    assert launches.commit_of(tmp_path / "nowhere") is None


def test_a_file_that_is_not_tracked_is_of_no_repository(repository):
    inside = repository / "env" / "package.py"
    inside.parent.mkdir()
    inside.write_text("")
    assert launches.commit_of_file(inside) is None
    assert launches.commit_of_file(repository / "code.py") == launches.commit_of(repository)


def test_without_git_nothing_is_known(repository, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert launches.commit_of(repository) is None


def test_the_callers_environment_leads_git_nowhere_else(repository, monkeypatch, tmp_path):
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert launches.commit_of(repository) is not None


def test_no_program_of_the_repositorys_configuration_runs(repository):
    witness = repository / "ran"
    hook = repository / "hook.sh"
    hook.write_text(f"#!/bin/sh\ntouch {witness}\n")
    hook.chmod(0o755)
    _git(repository, "config", "core.fsmonitor", str(hook))
    assert launches.commit_of(repository)["dirty"] is False
    assert not witness.exists()


def test_a_git_that_does_not_answer_is_given_up(repository, monkeypatch, tmp_path):
    slow = tmp_path / "bin" / "git"
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", str(slow.parent))
    monkeypatch.setattr(launches, "GIT_TIMEOUT_S", 0.1)
    assert launches.commit_of(repository) is None
