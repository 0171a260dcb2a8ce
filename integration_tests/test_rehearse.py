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

pytestmark = [pytest.mark.thorough, pytest.mark.once, pytest.mark.thorough]


def git(root: Path, *line: str) -> str:
    done = subprocess.run(["git", "-C", root, *line], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_a_clone_is_tagged_and_the_repository_stays(repository, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    silent = repository / "packages/optim/changes/2.feature.md"
    silent.unlink()
    git(repository, "tag", f"optim-v{workspace.members(repository)['optim'].version}", "HEAD")
    git(repository, "commit", "--quiet", "--all", "--message", "No news of optim")
    before = git(repository, "for-each-ref"), git(repository, "status", "--porcelain")
    clone = tmp_path / "rehearsal"
    rehearse.clone(clone, repository)
    rehearse.tag(clone)
    assert (git(repository, "for-each-ref"), git(repository, "status", "--porcelain")) == before
    now, then = workspace.members(clone), workspace.members(repository)
    raised = {folder for folder in now if now[folder].version != then[folder].version}
    assert raised == now.keys() - {"optim"}
    tags = set(git(clone, "tag").split())
    assert tags == {f"{folder}-v{member.version}" for folder, member in now.items()}
    assert workspace.false_pins(clone) == []
