# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The sample of cases that a second Python runs."""

import os
import shutil
import subprocess
import sys

import pytest

import suite_sample
import workspace

pytestmark = pytest.mark.once

SUITE = """
import os, pytest

@pytest.mark.parametrize("n", range({count}))
def test_many(n):
    print("many", n)

def test_one():
    assert "SUITE_CASES" not in os.environ
"""


@pytest.mark.parametrize(
    ("count", "kept"),
    [(1, [0]), (2, [0, 1]), (3, [0, 2]), (4, [0, 3]), (5, [0, 4]), (10, [0, 4, 8, 9])],
)
def test_of_the_cases_of_a_test_the_ends_and_every_fourth_are_kept(count, kept):
    cases = [f"a.py::T::test[{i}]" for i in range(count)]
    others = ["a.py::test", "a.py::other[0]", "b.py::test"]
    out = suite_sample.left_out([*others, *cases])
    assert out == set(cases) - {cases[i] for i in kept}


def test_a_sampled_run_counts_what_it_leaves_out_and_records_nothing(tmp_path):
    tests = tmp_path / "packages/one/tests"
    tests.mkdir(parents=True)
    (tests / "test_it.py").write_text(SUITE.format(count=6))
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(workspace.ROOT / name, tmp_path)
    shutil.copytree(workspace.ROOT / "scripts", tmp_path / "scripts")
    line = [sys.executable, "-m", "pytest", "-rP", "-p", "no:cacheprovider", "packages/one/tests"]
    sample = {**os.environ, suite_sample.VARIABLE: suite_sample.SAMPLE}
    found = {}
    for name, environment in {"sample": sample, "all": dict(os.environ)}.items():
        run = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert run.returncode == 0, run.stdout + run.stderr
        numbers = [line for line in run.stdout.splitlines() if line.startswith("many ")]
        found[name] = numbers, "3 deselected" in run.stdout, (tmp_path / "build/times").exists()
    assert found["sample"] == (["many 0", "many 4", "many 5"], True, False)
    assert found["all"] == ([f"many {n}" for n in range(6)], False, True)
