# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A copy of the repository's frame, to break, install and release in tests."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import workspace

sys.path.append(str(Path(__file__).parent))  # train_command.py, for several test files

ADDRESS = "https://example.org/dovetail"
FRAME = (
    "scripts/*",
    "constraints/*",
    "pyproject.toml",
    "packages/*/pyproject.toml",
    "packages/*/CHANGELOG.md",
    "packages/*/native/pyproject.toml",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of test_doctests.py; it may be given several times."""
    parser.addoption("--doctests", action="append", metavar="PACKAGE", help="of these packages")


@pytest.fixture
def frame(tmp_path: Path) -> Path:
    """scripts/, constraints/ and the members' pyproject files, in a folder with a space."""
    root = tmp_path / "a copy"
    for pattern in FRAME:
        for file in filter(Path.is_file, workspace.ROOT.glob(pattern)):
            target = root / file.relative_to(workspace.ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target)
    return root


class Checkout:
    """The root of a repository with one suite, packages/one/tests, that a process runs."""

    def __init__(self, root: Path) -> None:
        self.root, self.suite = root, root / "packages/one/tests"
        self.suite.mkdir(parents=True)
        for name in ("conftest.py", "pyproject.toml"):
            shutil.copy(workspace.ROOT / name, root)
        shutil.copytree(workspace.ROOT / "scripts", root / "scripts")

    def write(self, text: str, name: str = "test_it.py") -> None:
        """Writes a file of tests."""
        (self.suite / name).write_text(text)

    def run(self, *options: str, code: int = 0, **variables: str) -> str:
        """Runs pytest on the suite, or on the paths in `options`; returns what it prints."""
        paths = [] if any(o.startswith("packages/") for o in options) else ["packages/one/tests"]
        line = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, *paths]
        out, own = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}, os.environ | variables
        done = subprocess.run(line, cwd=self.root, env=own, text=True, **out)
        assert done.returncode == code, done.stdout
        return done.stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """A checkout without a test."""
    return Checkout(tmp_path / "checkout")


@pytest.fixture
def git(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """git(folder, *line) runs git, without the settings of this machine, and returns its output."""
    for name in ("AUTHOR_NAME", "AUTHOR_EMAIL", "COMMITTER_NAME", "COMMITTER_EMAIL"):
        monkeypatch.setenv(f"GIT_{name}", "tester@example.org")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)

    def run(folder: Path, *line: str) -> str:
        return subprocess.check_output(["git", "-C", str(folder), *line], text=True).strip()

    return run


@pytest.fixture
def commit(git: Callable[..., str]) -> Callable[..., None]:
    """commit(folder, message) commits all files."""

    def run(folder: Path, message: str) -> None:
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "--message", message)

    return run


@pytest.fixture
def repository(frame: Path, git: Callable[..., str], commit: Callable[..., None]) -> Path:
    """The frame with an address and a fragment in each member, as a repository's first commit."""
    project = frame / "pyproject.toml"
    project.write_text(re.sub(r'(?m)^url = ".*"', f'url = "{ADDRESS}"', project.read_text()))
    for member in workspace.members(frame).values():
        fragment = member.path / "changes" / "2.feature.md"
        fragment.parent.mkdir()
        fragment.write_text(f"The first words about {member.name}.\n")
    (frame / ".gitignore").write_text("__pycache__/\nbuild/\npid\n")
    git(frame, "init", "--quiet")
    commit(frame, "The frame")
    return frame
