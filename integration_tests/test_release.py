# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A release is one true commit and its tag, or nothing."""

import datetime
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import release
import workspace

pytestmark = pytest.mark.once


def git(root: Path, *line: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(root), *line], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def run(root: Path, *line: str, before: Path | None = None) -> subprocess.CompletedProcess:
    """Run the copy's own release tool with this environment's towncrier."""
    folders = [*([str(before)] if before else []), str(Path(sys.executable).parent)]
    environment = {**os.environ, "PATH": os.pathsep.join([*folders, os.environ["PATH"]])}
    command = [sys.executable, str(root / "scripts" / "release.py"), *line]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def version(root: Path, folder: str) -> str:
    return workspace.members(root)[folder].version


def amend(root: Path) -> None:
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--amend", "--message", "The frame")


def assert_refused(root: Path, done: subprocess.CompletedProcess, *words: str) -> None:
    """It exits with 1, says each word, and neither commits nor tags nor leaves a change."""
    assert done.returncode == 1
    for word in ("refused", *words):
        assert word in done.stderr
    assert git(root, "log", "--format=%s") == "The frame"
    assert git(root, "tag") == ""


def test_a_library_release_is_one_commit_with_its_pin_and_its_changelog(repository):
    major, minor, _ = version(repository, "data").split(".")
    later = f"{major}.{int(minor) + 1}.0"
    fragment = repository / "packages/data/changes/2.feature.md"
    fragment.write_text("The first sentence.\nThe second one.\n")
    (fragment.parent / "3.misc.md").write_text("Shown too.\n")
    amend(repository)
    done = run(repository, "data", "minor")
    assert done.returncode == 0, done.stderr
    assert git(repository, "log", "-1", "--format=%s") == f"Release dovetail-data {later}"
    assert git(repository, "describe", "--exact-match") == f"data-v{later}"
    assert git(repository, "status", "--porcelain") == ""
    assert set(git(repository, "show", "--format=", "--name-only").splitlines()) == {
        "packages/data/CHANGELOG.md",
        "packages/data/changes/.gitkeep",
        "packages/data/changes/2.feature.md",
        "packages/data/changes/3.misc.md",
        "packages/data/pyproject.toml",
        "packages/stack/pyproject.toml",
    }
    assert version(repository, "data") == later
    assert workspace.false_pins(repository) == []
    changelog = (repository / "packages/data/CHANGELOG.md").read_text()
    title, _, notes = changelog.partition("\n## ")[2].partition("\n")
    assert title.startswith(f"{later} (")
    assert notes.strip() == (
        "### Features\n\n- The first sentence. (#2)\n- The second one. (#2)\n\n"
        "### Other changes\n\n- Shown too. (#3)"
    )
    assert f"git push origin HEAD data-v{later}" in done.stdout


def test_a_native_wheel_has_the_version_of_its_package_which_may_be_named(repository):
    done = run(repository, "kernels", "77.0.1")
    assert done.returncode == 0, done.stderr
    assert git(repository, "describe", "--exact-match") == "kernels-v77.0.1"
    native = repository / "packages/kernels/native/pyproject.toml"
    assert '\nversion = "77.0.1"\n' in native.read_text()


@pytest.mark.thorough
@pytest.mark.thorough
def test_the_meta_package_waits_for_every_member_that_it_pins(repository):
    libraries = [f for f in workspace.members(repository) if f != workspace.META]
    done = run(repository, "stack")
    assert_refused(repository, done, *(f"\nscripts/release {f}" for f in libraries))
    for folder in libraries:
        assert run(repository, folder, "patch").returncode == 0
    done = run(repository, "stack")
    assert done.returncode == 0, done.stderr
    assert re.match(r"20\d\d\.\d+\.", version(repository, "stack"))
    assert git(repository, "describe", "--exact-match") == f"stack-v{version(repository, 'stack')}"


def test_refuses_when_the_pins_would_lie(repository):
    project = repository / "packages/train/pyproject.toml"
    now = version(repository, "train")
    project.write_text(project.read_text().replace(f'version = "{now}"', 'version = "7.7.7"'))
    amend(repository)
    done = run(repository, "data", "patch")
    assert_refused(repository, done, f"dovetail-train is 7.7.7, but stack pins =={now}", "mend")


def test_refuses_a_dirty_tree_and_a_release_without_a_fragment(repository):
    (repository / "packages/data/changes/2.feature.md").unlink()
    done = run(repository, "data", "patch")
    assert_refused(repository, done, "must be clean", "2.feature.md")
    amend(repository)
    done = run(repository, "data", "patch")
    assert_refused(repository, done, "nothing to release", "packages/data/changes", "write one")


def test_refuses_a_version_that_is_not_later_or_not_said(repository):
    now = version(repository, "data")
    for wanted in ([now], ["99.2"], ["next"], []):
        done = run(repository, "data", *wanted)
        assert_refused(repository, done, f"later than {now}", "type scripts/release data patch")


def test_refuses_a_tag_that_exists(repository):
    git(repository, "tag", "data-v77.0.1")
    done = run(repository, "data", "77.0.1")
    assert done.returncode == 1
    assert "the tag data-v77.0.1 exists; choose a later" in done.stderr


def test_a_failure_leaves_the_tree_as_it_was(repository, tmp_path):
    (tmp_path / "bin").mkdir()
    crier = tmp_path / "bin" / "towncrier"
    crier.write_text("#!/bin/sh\nexit 3\n")
    crier.chmod(0o755)
    done = run(repository, "data", "patch", before=crier.parent)
    assert done.returncode != 0
    assert git(repository, "status", "--porcelain") == ""
    assert git(repository, "log", "--format=%s") == "The frame"


def test_calendar_version():
    assert release.by_calendar("2026.11.3", datetime.date(2026, 11, 30)) == "2026.11.4"
    assert release.by_calendar("2026.11.3", datetime.date(2027, 1, 2)) == "2027.1.0"
