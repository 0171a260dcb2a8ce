# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A release is one commit and its tag."""

import datetime
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import release
import workspace

pytestmark = pytest.mark.once


def run(root: Path, *line: str) -> subprocess.CompletedProcess:
    """Run the copy's own release tool with this environment's uv and towncrier."""
    own = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = [sys.executable, root / "scripts/release.py", *line]
    return subprocess.run(command, env=own, capture_output=True, text=True)


def test_a_library_release_is_one_commit_with_its_pin_and_its_changelog(repository, git, commit):
    major, minor, _ = workspace.members(repository)["kernels"].version.split(".")
    later = f"{major}.{int(minor) + 1}.0"
    package = repository / "packages/kernels"
    changes, native = package / "changes", package / "native/pyproject.toml"
    (changes / "2.feature.md").write_text("The first sentence.\nThe second one.\n")
    (changes / "3.misc.md").write_text("Shown too.\n")
    commit(repository, "News")
    done = run(repository, "kernels", "minor")
    assert done.returncode == 0, done.stderr
    assert f"git push origin HEAD kernels-v{later}" in done.stdout
    assert git(repository, "log", "-1", "--format=%s") == f"Release dovetail-kernels {later}"
    assert git(repository, "describe", "--exact-match") == f"kernels-v{later}"
    assert git(repository, "status", "--porcelain") == ""
    assert workspace.members(repository)["kernels"].version == later
    assert f'\nversion = "{later}"\n' in native.read_text()
    for file in (native, package / "pyproject.toml"):
        project = tomllib.loads(file.read_text())["project"]
        assert project["urls"] == {"Repository": "https://example.org/dovetail"}
    assert workspace.false_pins(repository) == []
    assert [f.name for f in changes.iterdir()] == [".gitkeep"]
    notes = (package / "CHANGELOG.md").read_text().partition(f"\n## {later} (")[2]
    features = "### Features\n\n- The first sentence. (#2)\n- The second one. (#2)\n\n"
    assert notes.strip().endswith(f")\n\n{features}### Other changes\n\n- Shown too. (#3)")


def test_refuses_what_a_release_may_not_have(repository, git, commit):
    def refused(word: str) -> None:
        done = run(repository, "data", "patch")
        assert done.returncode == 1
        assert word in done.stderr
        assert git(repository, "tag") == ""

    (repository / "packages/data/changes/2.feature.md").unlink()
    refused("must be clean")
    commit(repository, "No news")
    refused("no fragment")
    (repository / "README.md").write_text("| peer | tokens/s |\n|---|---|\n")
    commit(repository, "A table to fill")
    refused("a column a cell; fill or delete\nREADME.md: | peer | tokens/s |")
    root = repository / "pyproject.toml"
    root.write_text(root.read_text().replace("https://example.org/dovetail", ""))
    commit(repository, "No address")
    refused("(Project-URL), got [tool.dovetail] url='' in pyproject.toml; write the repository's")
    git(repository, "reset", "--quiet", "--hard", "HEAD~2")
    project = repository / "packages/train/pyproject.toml"
    now = workspace.members(repository)["train"].version
    project.write_text(project.read_text().replace(f'version = "{now}"', 'version = "7.7.7"'))
    commit(repository, "A false pin")
    refused(f"dovetail-train is 7.7.7, but stack pins =={now}")


def test_calendar_version():
    assert release.by_calendar("2026.11.3", datetime.date(2026, 11, 30)) == "2026.11.4"
    assert release.by_calendar("2026.11.3", datetime.date(2027, 1, 2)) == "2027.1.0"
