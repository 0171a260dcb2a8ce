# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A copy of the repository's frame, to break, install and release in tests."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import workspace

sys.path.append(str(Path(__file__).parent))  # train_command.py, for several test files

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


@pytest.fixture
def repository(frame: Path) -> Path:
    """The frame with one fragment in each member, as the first commit of a git repository."""
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
