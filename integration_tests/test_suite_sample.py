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


def test_one_case_of_each_test_is_kept_and_not_always_the_same():
    names = [f"a.py::T::test_{t}[{i}]" for t in range(40) for i in range(4)] + ["b.py::test"]
    out = suite_sample.left_out(names)
    kept = [name for name in names if name not in out]
    assert [name.partition("[")[0] for name in kept] == list(
        dict.fromkeys(name.partition("[")[0] for name in names)
    )
    assert {name[-2] for name in kept[:-1]} == set("0123")
    assert suite_sample.left_out(names) == out


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
        recorded = (tmp_path / "build/times").exists()
        found[name] = len(numbers), "5 deselected" in run.stdout, recorded
    assert found == {"sample": (1, True, False), "all": (6, False, True)}
