# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import subprocess

import pytest

from dovetail_stack import git


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
    assert git.state(repository) == {"commit": commit, "dirty": False}
    (repository / "new.txt").write_text("not tracked, so no change")
    assert git.state(repository) == {"commit": commit, "dirty": False}
    (repository / "code.py").write_text("x = 2\n")
    assert git.state(repository) == {"commit": commit, "dirty": True}


def test_no_repository_and_no_commit_are_no_failure(tmp_path):
    assert git.state(tmp_path) is None
    _git(tmp_path, "init", "--quiet")
    assert git.state(tmp_path) is None
    assert git.state(tmp_path / "nowhere") is None


def test_a_file_that_is_not_tracked_is_of_no_repository(repository):
    inside = repository / "env" / "package.py"
    inside.parent.mkdir()
    inside.write_text("")
    assert git.state_of_file(inside) is None
    assert git.state_of_file(repository / "code.py") == git.state(repository)


def test_without_git_nothing_is_known(repository, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert git.state(repository) is None


def test_the_callers_environment_leads_git_nowhere_else(repository, monkeypatch, tmp_path):
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert git.state(repository) is not None


def test_no_program_of_the_repositorys_configuration_runs(repository):
    witness = repository / "ran"
    hook = repository / "hook.sh"
    hook.write_text(f"#!/bin/sh\ntouch {witness}\n")
    hook.chmod(0o755)
    _git(repository, "config", "core.fsmonitor", str(hook))
    assert git.state(repository)["dirty"] is False
    assert not witness.exists()


def test_a_git_that_does_not_answer_is_given_up(repository, monkeypatch, tmp_path):
    slow = tmp_path / "bin" / "git"
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", str(slow.parent))
    monkeypatch.setattr(git, "TIMEOUT_S", 0.1)
    assert git.state(repository) is None
