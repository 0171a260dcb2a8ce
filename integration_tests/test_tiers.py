# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""scripts/tiers.py: the tests of each tier, and the outcomes by file."""

import json
import shutil
import subprocess
import sys

import pytest

import workspace

pytestmark = pytest.mark.once

FIRST = """
import os, pytest

@pytest.mark.parametrize("n", range(6))
def test_many(n):
    print("ran many")

@pytest.mark.thorough
@pytest.mark.parametrize("n", range(3))
def test_long(n):
    print("ran long")

def test_low():
    print("ran low" if os.environ.get("JAX_DISABLE_MOST_OPTIMIZATIONS") else "ran high")
"""
SECOND = """
import pytest
pytestmark = pytest.mark.thorough

def test_second():
    print("ran second")
"""


@pytest.fixture
def root(tmp_path):
    tests = tmp_path / "packages/one/tests"
    tests.mkdir(parents=True)
    (tests / "test_first.py").write_text(FIRST)
    (tests / "test_second.py").write_text(SECOND)
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(workspace.ROOT / name, tmp_path)
    shutil.copytree(workspace.ROOT / "scripts", tmp_path / "scripts")
    return tmp_path


def run(root, *options):
    line = [sys.executable, "-m", "pytest", "-rP", "-p", "no:cacheprovider", *options]
    return subprocess.run(line, cwd=root, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "tier, expected",
    [
        ("fast", {"many": 1, "low": 1}),
        ("thorough", {"many": 5, "long": 3, "second": 1}),
        ("sample", {"many": 1, "long": 1, "high": 1, "second": 1}),
        ("", {"many": 6, "long": 3, "high": 1, "second": 1}),
    ],
)
def test_a_run_of_a_tier(root, tier, expected):
    done = run(root, *(["--tier", tier] if tier else []), "packages/one/tests")
    assert done.returncode == 0, done.stdout + done.stderr
    words = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("ran ")]
    assert {word: words.count(word) for word in words} == expected


def test_the_outcome_of_each_file_is_written(root):
    files = [f"packages/one/tests/test_{name}.py" for name in ("first", "second", "third")]
    (root / files[1]).write_text("def test_bad(): assert 1 == 2\n")
    (root / files[2]).write_text("")
    done = run(root, "--tier", "sample", "--outcomes", "out/file.json", *files)
    assert done.returncode == 1, done.stdout + done.stderr
    found = json.loads((root / "out/file.json").read_text())
    passed = {name: outcome["passed"] for name, outcome in found.items()}
    assert passed == {"test_first.py": True, "test_second.py": False, "test_third.py": True}
