# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The rehearsal of a release. Building and installing everything is the nightly job's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import rehearse
import workspace

pytestmark = [pytest.mark.thorough, pytest.mark.once]


def git(root: Path, *line: str) -> str:
    return subprocess.check_output(["git", "-C", str(root), *line], text=True).strip()


def test_a_clone_is_tagged_and_the_repository_stays(repository, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    (repository / "packages/optim/changes/2.feature.md").unlink()
    git(repository, "commit", "--quiet", "--all", "--message", "No news of optim")
    first, last = tmp_path / "first", tmp_path / "last"
    rehearse.clone(first, repository)
    with pytest.raises(subprocess.CalledProcessError):  # the meta-package waits for optim
        rehearse.tag(first)
    optim = workspace.members(repository)["optim"].version
    git(repository, "tag", f"optim-v{optim}")
    before = git(repository, "for-each-ref")
    rehearse.clone(last, repository)
    rehearse.tag(last)
    assert git(repository, "for-each-ref") == before
    assert git(repository, "status", "--porcelain") == ""
    now, then = workspace.members(last), workspace.members(repository)
    assert {f for f in now if now[f].version != then[f].version} == now.keys() - {"optim"}
    assert set(git(last, "tag").split()) == {f"{f}-v{m.version}" for f, m in now.items()}
    assert workspace.false_pins(last) == []
