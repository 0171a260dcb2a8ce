# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What a suite costs, and its budget of CPU seconds."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import suite_times
import workspace
from suite_times import Cost

pytestmark = pytest.mark.once

SUITE = """
import jax, jax.numpy as jnp

def test_of_two_programs():
    x = jnp.arange(5.0)
    assert float(jax.jit(lambda x: (x * 2).sum())(x)) == 20.0

def test_of_none():
    pass
"""

PLAIN = """
import os, pytest, sys

def test_bytecode_is_kept():
    assert not sys.dont_write_bytecode and not os.environ["PYTHONDONTWRITEBYTECODE"]

@pytest.mark.once
def test_of_texts():
    pass
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The frame of a repository with one suite, whose budget is 1,000 CPU seconds."""
    root = tmp_path / "checkout"
    (root / "packages/one/tests").mkdir(parents=True)
    (root / "packages/one/tests/test_it.py").write_text(SUITE)
    shutil.copy(workspace.ROOT / "conftest.py", root)
    shutil.copytree(workspace.ROOT / "scripts", root / "scripts")
    settings = (workspace.ROOT / "pyproject.toml").read_text()
    before, _, after = settings.partition("[tool.dovetail.budgets]\n")
    rest = after[after.index("\n[") :]
    limits = "{ fast = 1000, warm = 1000, cold = 1000 }"
    budget = f'[tool.dovetail.budgets]\n"packages/one/tests" = {limits}\n'
    (root / "pyproject.toml").write_text(before + budget + rest)
    return root


def run(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "pytest", "-q", "packages/one/tests", *options]
    own = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(line, cwd=root, env=own, capture_output=True, text=True, check=False)


def test_a_run_counts_the_programs_of_each_test(checkout):
    done = run(checkout, "--durations=1")
    assert done.returncode == 0, done.stdout + done.stderr
    # The range and the sum.
    assert re.search(r"CPU s +2 compiled  \S+test_it.py::test_of_two_programs$", done.stdout, re.M)
    assert "compiled  packages/one/tests/test_it.py::test_of_none" not in done.stdout


@pytest.fixture
def plain(checkout: Path) -> Path:
    """The same with a suite that does not need JAX."""
    (checkout / "packages/one/tests/test_it.py").write_text(PLAIN)
    return checkout


def test_a_suite_that_takes_half_more_than_its_budget_fails_and_says_what_to_do(plain):
    settings = plain / "pyproject.toml"
    settings.write_text(settings.read_text().replace("1000", "0.001"))
    done = run(plain)
    assert done.returncode == 1
    assert "budget: packages/one/tests took " in done.stdout
    assert "took too much, these tests most: make them smaller" in done.stdout
    assert "compiled  packages/one/tests/test_it.py::test_of_texts" in done.stdout
    assert run(plain, "-k", "texts").returncode == 0  # no budget for a part
    marks = f"{workspace.USUAL_TESTS} and not once"  # as the second Python runs them
    assert f'"{workspace.USUAL_TESTS}"' in settings.read_text()
    assert run(plain, "-m", marks).returncode == 1


@pytest.mark.thorough
def test_a_dear_test_of_the_fast_tier_needs_a_reason(plain):
    file = plain / "packages/one/tests/test_it.py"
    loop = "    end = time.process_time() + 2\n    while time.process_time() < end: pass\n"
    shared = (
        f"@pytest.fixture(scope='module')\ndef shared():\n{loop}\ndef test_it(shared): pass\n\n"
    )
    file.write_text(f"import pytest, time\n\n{shared}def test_spin():\n{loop}")
    module = plain / "scripts/suite_times.py"
    module.write_text(module.read_text().replace("FAST_TEST_S = 1.5", "FAST_TEST_S = 0.1"))
    assert run(plain).returncode == 0  # only the fast tier is for everybody
    done = run(plain, "--tier", "fast")
    assert done.returncode == 1
    assert "test_it.py::test_spin took " in done.stdout
    assert "say why in pytest.mark.costly('...')" in done.stdout
    assert "test_it.py::test_it took " not in done.stdout  # that is its fixture
    mark = "@pytest.mark.costly('it spins')\ndef test_spin"
    file.write_text(file.read_text().replace("def test_spin", mark))
    assert run(plain, "--tier", "fast").returncode == 0


@pytest.mark.parametrize(
    "tier, programs, cached, cpu_s",
    [("thorough", 10, 5, 80), ("thorough", 0, 0, 60), ("fast", 10, 10, 30), ("", 10, 10, 90)],
)
def test_the_budget_of_a_suite(tmp_path, tier, programs, cached, cpu_s):
    text = '[tool.dovetail.budgets]\n"packages/one/tests" = { fast = 30, warm = 60, cold = 100 }\n'
    (tmp_path / "pyproject.toml").write_text(text)
    cost = Cost(1.0, programs, cached)
    assert suite_times.budget("packages/one/tests", tier, cost, root=tmp_path) == cpu_s
    assert suite_times.budget("packages/two/tests", tier, cost, root=tmp_path) is None


def test_every_suite_has_a_budget():
    suites = {f"packages/{folder}/tests" for folder in workspace.members()} | {"integration_tests"}
    assert suite_times.budgets().keys() == suites
    for suite, budget in suite_times.budgets().items():
        assert budget["warm"] <= budget["cold"]
        assert budget["fast"] <= (90 if suite == "integration_tests" else 40)
