# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The record of what a suite costs, and its budget of CPU seconds."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import suite_plugins
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
import os, sys

def test_bytecode_is_kept():
    assert not sys.dont_write_bytecode and not os.environ["PYTHONDONTWRITEBYTECODE"]

def test_of_none():
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


def record(root: Path) -> dict:
    (file,) = (root / suite_times.FOLDER).glob("*.json")
    return json.loads(file.read_text())


def test_a_run_of_a_suite_leaves_a_record_of_each_test(checkout):
    done = run(checkout)
    assert done.returncode == 0, done.stdout + done.stderr
    document = record(checkout)
    two, none = (Cost(*row) for row in document["tests"].values())
    assert (two.programs, two.cached) == (2, 0)  # the range and the sum
    assert (none.programs, none.cached) == (0, 0)
    total = Cost(*document["total"])
    assert total.cpu_s >= two.cpu_s + none.cpu_s
    shown = suite_times.table(document, "one")
    assert "2 tests, 2 programs, 2 of them compiled" in shown.splitlines()[0]
    assert shown.splitlines()[1].endswith("2 compiled  test_it.py::test_of_two_programs")


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
    assert "suite_times.py lists its slowest tests: make them smaller" in done.stdout
    assert run(plain, "-k", "none").returncode == 0  # no budget for a part


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


@pytest.mark.thorough
def test_a_failed_or_partial_run_leaves_the_record_as_it_was(plain):
    run(plain)
    before = record(plain)
    assert run(plain, "-k", "none").returncode == 0
    assert run(plain, "--deselect", "packages/one/tests/test_it.py::test_of_none").returncode == 0
    (plain / "packages/one/tests/test_it.py").write_text("def test_it(): assert 1 == 2")
    assert run(plain).returncode == 1
    assert record(plain) == before


def test_without_the_tests_that_run_once_a_suite_is_still_whole(plain):
    marks = f"{workspace.USUAL_TESTS} and not once"
    assert marks in suite_plugins.WHOLE
    written = 'f"{workspace.USUAL_TESTS} and not once"'
    assert f'"-m", {written}' in (workspace.ROOT / "noxfile.py").read_text()
    assert f'"{workspace.USUAL_TESTS}"' in (workspace.ROOT / "pyproject.toml").read_text()
    file = plain / "packages/one/tests/test_it.py"
    file.write_text(PLAIN + "\nimport pytest\n\n@pytest.mark.once\ndef test_of_texts(): pass\n")
    assert run(plain, "-m", marks).returncode == 0
    assert [name.split("::")[1] for name in record(plain)["tests"]] == [
        "test_bytecode_is_kept",
        "test_of_none",
    ]


@pytest.mark.parametrize(
    "tier, programs, cached, cpu_s",
    [
        ("thorough", 10, 10, 60),
        ("thorough", 10, 0, 100),
        ("thorough", 10, 5, 80),
        ("thorough", 0, 0, 60),  # no program was wanted
        ("fast", 10, 10, 30),  # that of nothing cached
        ("", 10, 10, 90),  # both
    ],
)
def test_the_budget_of_a_suite(tmp_path, tier, programs, cached, cpu_s):
    text = '[tool.dovetail.budgets]\n"packages/one/tests" = { fast = 30, warm = 60, cold = 100 }\n'
    (tmp_path / "pyproject.toml").write_text(text)
    cost = Cost(1.0, 1.0, programs, cached)
    assert suite_times.budget("packages/one/tests", tier, cost, root=tmp_path) == cpu_s
    assert suite_times.budget("packages/two/tests", tier, cost, root=tmp_path) is None


def test_every_suite_has_a_budget():
    suites = {f"packages/{folder}/tests" for folder in workspace.members()} | {"integration_tests"}
    assert suite_times.budgets().keys() == suites
    for suite, budget in suite_times.budgets().items():
        assert budget["warm"] <= budget["cold"]
        assert budget["fast"] <= (90 if suite == "integration_tests" else 40)


def test_without_records_the_table_says_so(tmp_path, capsys):
    assert suite_times.main(tmp_path) == 1
    assert "no suite has been run" in capsys.readouterr().err
    cost = Cost(2.0, 90.0, 4, 1)
    tests = {"packages/one/tests/a::b": cost}
    suite_times.write("packages/one/tests", "fast", cost, tests, folder=tmp_path)
    assert suite_times.main(tmp_path) == 0
    assert capsys.readouterr().out.endswith("all: 1.5 CPU minutes\n")
