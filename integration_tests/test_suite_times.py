# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What a suite costs, and its budget of CPU seconds."""

import re

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


OWN = {"JAX_ENABLE_COMPILATION_CACHE": "false", "PYTHONDONTWRITEBYTECODE": "1"}


def run(checkout, *options):
    return checkout.run("-q", *options, **OWN)


@pytest.fixture
def budgeted(checkout):
    """A suite whose budget is 1,000 CPU seconds."""
    settings = checkout.root / "pyproject.toml"
    before, _, after = settings.read_text().partition("[tool.dovetail.budgets]\n")
    limits = "{ fast = 1000, warm = 1000, cold = 1000 }"
    budget = f'[tool.dovetail.budgets]\n"packages/one/tests" = {limits}\n'
    settings.write_text(before + budget + after[after.index("\n[") :])
    checkout.write(SUITE)
    return checkout


def test_a_run_counts_the_programs_of_each_test(budgeted):
    done = run(budgeted, "--durations=1")
    assert done.returncode == 0, done.stdout + done.stderr
    # The range and the sum.
    assert re.search(r"CPU s +2 compiled  \S+test_it.py::test_of_two_programs$", done.stdout, re.M)
    assert "compiled  packages/one/tests/test_it.py::test_of_none" not in done.stdout


@pytest.fixture
def plain(budgeted):
    """The same with a suite that does not need JAX."""
    budgeted.write(PLAIN)
    return budgeted


def test_a_suite_that_takes_half_more_than_its_budget_fails_and_says_what_to_do(plain):
    settings = plain.root / "pyproject.toml"
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
    loop = "    end = time.process_time() + 2\n    while time.process_time() < end: pass\n"
    shared = (
        f"@pytest.fixture(scope='module')\ndef shared():\n{loop}\ndef test_it(shared): pass\n\n"
    )
    text = f"import pytest, time\n\n{shared}def test_spin():\n{loop}"
    plain.write(text)
    module = plain.root / "scripts/suite_times.py"
    module.write_text(module.read_text().replace("FAST_TEST_S = 1.5", "FAST_TEST_S = 0.1"))
    assert run(plain).returncode == 0  # only the fast tier is for everybody
    done = run(plain, "--tier", "fast")
    assert done.returncode == 1
    assert "test_it.py::test_spin took " in done.stdout
    assert "say why in pytest.mark.costly('...')" in done.stdout
    assert "test_it.py::test_it took " not in done.stdout  # that is its fixture
    mark = "@pytest.mark.costly('it spins')\ndef test_spin"
    plain.write(text.replace("def test_spin", mark))
    assert run(plain, "--tier", "fast").returncode == 0


@pytest.mark.parametrize(
    "tier, programs, cached, compile_s, cpu_s",
    [
        ("thorough", 10, 5, 3.0, 80),
        ("thorough", 0, 0, 0.0, 60),
        ("thorough", 100, 98, 25.0, 85),  # few, but dear
        ("thorough", 100, 98, 90.0, 100),
        ("fast", 10, 10, 0.0, 30),
        ("", 10, 10, 0.0, 90),
    ],
)
def test_the_budget_of_a_suite(tmp_path, tier, programs, cached, compile_s, cpu_s):
    text = '[tool.dovetail.budgets]\n"packages/one/tests" = { fast = 30, warm = 60, cold = 100 }\n'
    (tmp_path / "pyproject.toml").write_text(text)
    cost = Cost(1.0, programs, cached, compile_s)
    assert suite_times.budget("packages/one/tests", tier, cost, root=tmp_path) == cpu_s
    assert suite_times.budget("packages/two/tests", tier, cost, root=tmp_path) is None


def test_every_suite_has_a_budget():
    suites = {f"packages/{folder}/tests" for folder in workspace.members()} | {"integration_tests"}
    assert suite_times.budgets().keys() == suites
    for suite, budget in suite_times.budgets().items():
        assert budget["warm"] <= budget["cold"]
        assert budget["fast"] <= (90 if suite == "integration_tests" else 40)
