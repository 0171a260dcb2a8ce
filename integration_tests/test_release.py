# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A release is one commit and its tag."""

import datetime
import os
import subprocess
import sys
from pathlib import Path

import pytest

import release
import workspace

pytestmark = pytest.mark.once


def git(root: Path, *line: str) -> str:
    return subprocess.check_output(["git", "-C", str(root), *line], text=True).strip()


def run(root: Path, *line: str) -> subprocess.CompletedProcess:
    """Run the copy's own release tool with this environment's uv and towncrier."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = [sys.executable, str(root / "scripts" / "release.py"), *line]
    environment = {**os.environ, "PATH": path}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def version(root: Path, folder: str) -> str:
    return workspace.members(root)[folder].version


def test_a_library_release_is_one_commit_with_its_pin_and_its_changelog(repository):
    major, minor, _ = version(repository, "kernels").split(".")
    later = f"{major}.{int(minor) + 1}.0"
    changes = repository / "packages/kernels/changes"
    (changes / "2.feature.md").write_text("The first sentence.\nThe second one.\n")
    (changes / "3.misc.md").write_text("Shown too.\n")
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message", "News")
    done = run(repository, "kernels", "minor")
    assert done.returncode == 0, done.stderr
    assert f"git push origin HEAD kernels-v{later}" in done.stdout
    assert git(repository, "log", "-1", "--format=%s") == f"Release dovetail-kernels {later}"
    assert git(repository, "describe", "--exact-match") == f"kernels-v{later}"
    assert git(repository, "status", "--porcelain") == ""
    assert version(repository, "kernels") == later
    native = repository / "packages/kernels/native/pyproject.toml"
    assert f'\nversion = "{later}"\n' in native.read_text()
    assert workspace.false_pins(repository) == []
    assert [f.name for f in changes.iterdir()] == [".gitkeep"]
    changelog = (repository / "packages/kernels/CHANGELOG.md").read_text()
    title, _, notes = changelog.partition("\n## ")[2].partition("\n")
    assert title.startswith(f"{later} (")
    assert notes.strip() == (
        "### Features\n\n- The first sentence. (#2)\n- The second one. (#2)\n\n"
        "### Other changes\n\n- Shown too. (#3)"
    )


def test_refuses_a_dirty_tree_then_no_fragment_then_false_pins(repository):
    def refused(word: str) -> None:
        done = run(repository, "data", "patch")
        assert done.returncode == 1
        assert word in done.stderr
        assert git(repository, "tag") == ""

    (repository / "packages/data/changes/2.feature.md").unlink()
    refused("must be clean")
    git(repository, "commit", "--quiet", "--all", "--message", "No news")
    refused("no fragment")
    project = repository / "packages/train/pyproject.toml"
    now = version(repository, "train")
    project.write_text(project.read_text().replace(f'version = "{now}"', 'version = "7.7.7"'))
    git(repository, "commit", "--quiet", "--all", "--message", "A false pin")
    refused(f"dovetail-train is 7.7.7, but stack pins =={now}")


def test_calendar_version():
    assert release.by_calendar("2026.11.3", datetime.date(2026, 11, 30)) == "2026.11.4"
    assert release.by_calendar("2026.11.3", datetime.date(2027, 1, 2)) == "2027.1.0"
