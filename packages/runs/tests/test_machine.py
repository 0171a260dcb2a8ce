# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import platform
import subprocess
import sys
from importlib import metadata
from types import SimpleNamespace

import pytest

from dovetail_runs import devices_of
from dovetail_runs.record import machine


def _device(kind, platform="gpu"):
    return SimpleNamespace(platform=platform, device_kind=kind)


def test_devices_are_described_by_platform_kind_and_count():
    assert devices_of([_device("H100")] * 8) == {"platform": "gpu", "kind": "H100", "count": 8}
    mixed = devices_of(iter([_device("H100"), _device("A100"), _device("H100")]))
    assert mixed == {"platform": "gpu", "kind": "2 x H100, 1 x A100", "count": 3}


def test_what_is_no_device_is_refused():
    with pytest.raises(ValueError, match=r"must not be empty, got none: pass jax\.devices"):
        devices_of([])
    with pytest.raises(TypeError, match=r"must be those of JAX, got 'cuda:0': pass jax.devices"):
        devices_of([_device("H100"), "cuda:0"])


def test_versions_are_those_of_python_and_of_libraries_that_compute():
    versions = machine.versions()
    assert versions["python"] == platform.python_version()
    for name in ("numpy", "dovetail-runs"):
        assert versions[name] == metadata.version(name)
    assert not {"jaxtyping", "pytest", "hypothesis"} & versions.keys()
    assert list(versions) == sorted(versions)
    versions["numpy"] = "changed"
    assert machine.versions()["numpy"] == metadata.version("numpy")


def test_a_tuning_file_of_the_kernels_is_a_version(tmp_path, monkeypatch):
    file = tmp_path / "tuned.json"
    monkeypatch.setenv("DOVETAIL_KERNELS_TUNING", str(file))
    assert machine.versions()["dovetail-kernels-tuning"] == "unreadable"
    file.write_bytes(b"abc")
    # The first vector of FIPS 180-4.
    assert machine.versions()["dovetail-kernels-tuning"] == "ba7816bf8f01cfea"
    monkeypatch.delenv("DOVETAIL_KERNELS_TUNING")
    assert "dovetail-kernels-tuning" not in machine.versions()


def test_versions_that_differ_are_told_in_words():
    first = {"jax": "0.10.2", "numpy": "2.0", "jax-rocm7-plugin": "9"}
    assert machine.differing(first, {"jax": "0.12.0", "numpy": "2.0", "flax": "1"}) == [
        *["flax none is now 1", "jax 0.10.2 is now 0.12.0", "jax-rocm7-plugin 9 is now none"]
    ]
    assert machine.differing(first, first) == []


def _git(folder, *line):
    done = subprocess.run(["git", "-C", folder, *line], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path):
    """A repository with one commit of one file."""
    path = tmp_path / "repository"
    path.mkdir()
    _git(path, "init", "--quiet")
    (path / "code.py").write_text("x = 1\n")
    _git(path, "add", "--all")
    names = ("user.name=T", "user.email=t@example.org", "commit.gpgsign=false")
    options = [word for name in names for word in ("-c", name)]
    _git(path, *options, "commit", "--quiet", "--message", "First")
    return path


def test_a_clean_repository_and_a_changed_one(repository):
    commit = _git(repository, "rev-parse", "HEAD")
    assert machine.commit_of(repository) == {"commit": commit, "dirty": False}
    (repository / "new.txt").write_text("not tracked, so no change")
    assert machine.commit_of(repository) == {"commit": commit, "dirty": False}
    (repository / "code.py").write_text("x = 2\n")
    assert machine.commit_of(repository) == {"commit": commit, "dirty": True}


def test_no_repository_and_no_commit_are_no_failure(tmp_path):
    assert machine.commit_of(tmp_path) is None
    assert machine.commit_of(tmp_path / "nowhere") is None
    _git(tmp_path, "init", "--quiet")
    assert machine.commit_of(tmp_path) is None


def test_a_file_that_is_not_tracked_is_of_no_repository(repository):
    inside = repository / "env" / "package.py"
    inside.parent.mkdir()
    inside.write_text("")
    assert machine.commit_of_file(inside) is None
    assert machine.commit_of_file(repository / "code.py") == machine.commit_of(repository)


def test_without_git_nothing_is_known(repository, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert machine.commit_of(repository) is None


def test_the_callers_environment_leads_git_nowhere_else(repository, monkeypatch, tmp_path):
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert machine.commit_of(repository) is not None


def test_no_program_of_the_repositorys_configuration_runs(repository):
    witness, hook = repository / "ran", repository / "hook.sh"
    hook.write_text(f"#!/bin/sh\ntouch {witness}\n")
    hook.chmod(0o755)
    _git(repository, "config", "core.fsmonitor", str(hook))
    state = machine.commit_of(repository)
    assert state is not None
    assert state["dirty"] is False
    assert not witness.exists()


def _as_git(folder, monkeypatch, script):
    program = folder / "bin" / "git"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable} -S\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))


def test_a_git_that_does_not_answer_is_given_up(repository, monkeypatch, tmp_path):
    _as_git(tmp_path, monkeypatch, "import sys; sys.stdin.close(); import time; time.sleep(60)")
    monkeypatch.setattr(machine, "GIT_TIMEOUT_S", 0.1)
    assert machine.commit_of(repository) is None


def test_a_git_that_cannot_say_what_changed_leaves_it_open(repository, monkeypatch, tmp_path):
    script = "import sys; sys.exit(1) if 'status' in sys.argv else print('f' * 40)"
    _as_git(tmp_path, monkeypatch, script)
    assert machine.commit_of(repository) == {"commit": "f" * 40, "dirty": None}
