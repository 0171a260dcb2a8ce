# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

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


def run(root: Path, *line: str, path: str | None = None) -> subprocess.CompletedProcess:
    """Run the copy's own release tool with this environment's towncrier."""
    environment = {
        **os.environ,
        "PATH": path or f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    command = [sys.executable, str(root / "scripts" / "release.py"), *line]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def version(root: Path, folder: str) -> str:
    return workspace.members(root)[folder].version


def raised(before: str, place: str) -> str:
    """Reckoned by itself, beside uv."""
    major, minor, patch = map(int, before.split("."))
    return {
        "major": f"{major + 1}.0.0",
        "minor": f"{major}.{minor + 1}.0",
        "patch": f"{major}.{minor}.{patch + 1}",
    }[place]


def assert_refused(root: Path, done: subprocess.CompletedProcess, *words: str) -> None:
    """It exits with 1, says each word, and neither commits nor tags nor leaves a change."""
    assert done.returncode == 1
    for word in ("refused", *words):
        assert word in done.stderr
    assert git(root, "log", "--format=%s") == "The frame"
    assert git(root, "tag") == ""


def test_a_library_release_is_one_commit_with_its_pin_and_its_changelog(repository):
    before = version(repository, "data")
    later = raised(before, "minor")
    done = run(repository, "data", "minor")
    assert done.returncode == 0, done.stderr
    assert git(repository, "log", "-1", "--format=%s") == f"Release dovetail-data {later}"
    assert git(repository, "describe", "--exact-match") == f"data-v{later}"
    assert git(repository, "status", "--porcelain") == ""
    assert set(git(repository, "show", "--format=", "--name-only").splitlines()) == {
        "packages/data/CHANGELOG.md",
        "packages/data/changes/.gitkeep",
        "packages/data/changes/2.feature.md",
        "packages/data/pyproject.toml",
        "packages/stack/pyproject.toml",
    }
    assert version(repository, "data") == later
    assert workspace.false_pins(repository) == []
    changelog = (repository / "packages/data/CHANGELOG.md").read_text()
    assert re.search(rf"^## {re.escape(later)} \(", changelog, re.MULTILINE)
    assert "The first words about dovetail-data. (#2)" in " ".join(changelog.split())
    assert f"git push origin HEAD data-v{later}" in done.stdout


def test_a_native_wheel_is_raised_with_its_package(repository):
    later = raised(version(repository, "kernels"), "major")
    done = run(repository, "kernels", "major")
    assert done.returncode == 0, done.stderr
    assert git(repository, "describe", "--exact-match") == f"kernels-v{later}"
    native = repository / "packages/kernels/native/pyproject.toml"
    assert f'\nversion = "{later}"\n' in native.read_text()


def test_a_version_may_be_named(repository):
    before = version(repository, "data")
    later = raised(raised(before, "minor"), "patch")
    assert run(repository, "data", later).returncode == 0
    assert git(repository, "describe", "--exact-match") == f"data-v{later}"


def test_each_line_of_a_fragment_is_a_bullet(repository):
    fragment = repository / "packages/data/changes/2.feature.md"
    fragment.write_text("The first sentence.\nThe second one.\n")
    (fragment.parent / "3.misc.md").write_text("Shown too.\n")
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--amend", "--message", "The frame")
    assert run(repository, "data", "patch").returncode == 0
    changelog = (repository / "packages/data/CHANGELOG.md").read_text()
    release_notes = changelog.partition("\n## ")[2].partition("\n")[2]
    assert release_notes.strip() == (
        "### Features\n\n- The first sentence. (#2)\n- The second one. (#2)\n\n"
        "### Other changes\n\n- Shown too. (#3)"
    )


def test_the_meta_package_waits_for_every_member_that_it_pins(repository):
    libraries = [f for f in workspace.members(repository) if f != workspace.META]
    assert_refused(
        repository, run(repository, "stack"), *(f"run scripts/release {f}" for f in libraries)
    )
    for folder in libraries:
        assert run(repository, folder, "patch").returncode == 0
    days = [datetime.date.today()]
    done = run(repository, "stack")
    assert done.returncode == 0, done.stderr
    days.append(datetime.date.today())  # a month may end meanwhile
    found = version(repository, "stack")
    assert any(found.startswith(f"{day.year}.{day.month}.") for day in days)
    assert git(repository, "describe", "--exact-match") == f"stack-v{version(repository, 'stack')}"


def test_refuses_when_the_pins_would_lie(repository):
    project = repository / "packages/train/pyproject.toml"
    now = version(repository, "train")
    project.write_text(project.read_text().replace(f'version = "{now}"', 'version = "7.7.7"'))
    git(repository, "commit", "--quiet", "--all", "--amend", "--message", "The frame")
    done = run(repository, "data", "patch")
    assert_refused(repository, done, f"dovetail-train is 7.7.7, but stack pins =={now}", "mend")


def test_refuses_a_dirty_tree(repository):
    (repository / "note.txt").touch()
    done = run(repository, "data", "patch")
    assert_refused(repository, done, "must be clean", "note.txt", "commit or put away")


def test_refuses_without_a_fragment(repository):
    git(repository, "rm", "--quiet", "packages/data/changes/2.feature.md")
    git(repository, "commit", "--quiet", "--amend", "--message", "The frame")
    done = run(repository, "data", "patch")
    assert_refused(repository, done, "nothing to release", "packages/data/changes", "write one")


def test_refuses_a_version_that_is_not_later_or_not_said(repository):
    now = version(repository, "data")
    refused = run(repository, "data", now)
    assert_refused(repository, refused, "must be later", f"version='{now}'", "type patch")
    refused = run(repository, "data", "1.2")
    assert_refused(repository, refused, "three numbers", "version='1.2'", "type major")
    refused = run(repository, "data")
    assert_refused(repository, refused, "how much it changes", now, "type scripts/release data")


def test_refuses_a_tag_that_exists(repository):
    later = raised(version(repository, "data"), "patch")
    git(repository, "tag", f"data-v{later}")
    done = run(repository, "data", "patch")
    assert done.returncode == 1
    assert f"the tag data-v{later} exists; choose a later" in done.stderr


def test_a_failure_leaves_the_tree_as_it_was(repository, tmp_path):
    (tmp_path / "bin").mkdir()
    crier = tmp_path / "bin" / "towncrier"
    crier.write_text("#!/bin/sh\nexit 3\n")
    crier.chmod(0o755)
    done = run(repository, "data", "patch", path=f"{crier.parent}:{os.environ['PATH']}")
    assert done.returncode != 0
    assert git(repository, "status", "--porcelain") == ""
    assert git(repository, "log", "--format=%s") == "The frame"


def test_calendar_version():
    assert release.by_calendar("2026.11.3", datetime.date(2026, 11, 30)) == "2026.11.4"
    assert release.by_calendar("2026.11.3", datetime.date(2027, 1, 2)) == "2027.1.0"
