# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A copy of the repository's frame, to break, install and release in tests."""

import os
import re
import shutil
import subprocess
import sys
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

    def run(self, *options: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        """Runs pytest on the suite, or on the paths in `options`."""
        paths = [] if any(o.startswith("packages/") for o in options) else ["packages/one/tests"]
        line = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, *paths]
        own = {**os.environ, **variables}
        return subprocess.run(line, cwd=self.root, env=own, capture_output=True, text=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """A checkout without a test."""
    return Checkout(tmp_path / "checkout")


@pytest.fixture
def repository(frame: Path) -> Path:
    """The frame with an address and a fragment in each member, as a repository's first commit."""
    project = frame / "pyproject.toml"
    project.write_text(re.sub(r'(?m)^url = ".*"', f'url = "{ADDRESS}"', project.read_text()))
    for member in workspace.members(frame).values():
        fragment = member.path / "changes" / "2.feature.md"
        fragment.parent.mkdir()
        fragment.write_text(f"The first words about {member.name}.\n")
    (frame / ".gitignore").write_text("__pycache__/\n")
    for line in (
        ("init", "--quiet", "--initial-branch", "main"),
        ("config", "user.name", "Tester"),
        ("config", "user.email", "tester@example.org"),
        ("config", "commit.gpgsign", "false"),
        ("config", "tag.gpgsign", "false"),
        ("add", "--all"),
        ("commit", "--quiet", "--message", "The frame"),
    ):
        subprocess.run(["git", "-C", str(frame), *line], check=True)
    return frame
