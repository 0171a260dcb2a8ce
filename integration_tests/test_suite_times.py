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
    assert float(jax.jit(lambda x: (x * 2).sum())(jnp.arange(5.0))) == 20.0
"""
PLAIN = """
import os, pytest, sys
def test_bytecode_is_kept():
    assert not sys.dont_write_bytecode and not os.environ["PYTHONDONTWRITEBYTECODE"]
@pytest.mark.once
def test_of_texts(): pass
"""
OWN = {"JAX_ENABLE_COMPILATION_CACHE": "false", "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.fixture
def run(checkout):
    """Runs a suite with a budget, which must end with `code`; returns the output."""
    settings = checkout.root / "pyproject.toml"
    before, table = settings.read_text(), "[tool.dovetail.budgets]\n"

    def of(text, *options, code=0, budget_s=1000):
        limits = f"{{ fast = {budget_s}, warm = {budget_s}, cold = {budget_s} }}"
        own = f'{table}"packages/one/tests" = {limits}\n'
        settings.write_text(before.replace(table, own))
        checkout.write(text)
        return checkout.run("-q", *options, code=code, **OWN)

    return of


def test_a_suite_that_takes_half_more_than_its_budget_fails_and_says_what_to_do(run):
    output = run(SUITE, code=1, budget_s=0.001)
    assert "budget: packages/one/tests took " in output
    assert "took too much, these tests most: make them smaller" in output
    # The range and the sum.
    assert re.search(r"CPU s +2 compiled  \S+test_it.py::test_of_two_programs$", output, re.M)


@pytest.mark.thorough
def test_a_part_of_a_suite_has_no_budget_and_the_second_python_has(run):
    output = run(PLAIN, "-k", "texts or kept", "--durations=1", budget_s=0.001)
    assert output.count("compiled  packages/one/tests/test_it.py::") == 1
    marks = f"{workspace.USUAL_TESTS} and not once"  # as the second Python runs them
    assert f'"{workspace.USUAL_TESTS}"' in (workspace.ROOT / "pyproject.toml").read_text()
    run(PLAIN, "-m", marks, code=1, budget_s=0.001)
    run(PLAIN)


@pytest.mark.thorough
def test_a_dear_test_of_the_fast_tier_needs_a_reason(run, checkout):
    loop = "    end = time.process_time() + 1\n    while time.process_time() < end: pass\n"
    shared = f"@pytest.fixture(scope='module')\ndef shared():\n{loop}\n"
    text = f"import pytest, time\n{shared}def test_it(shared): pass\n\ndef test_spin():\n{loop}"
    module = checkout.root / "scripts/suite_times.py"
    module.write_text(module.read_text().replace("FAST_TEST_S = 1.5", "FAST_TEST_S = 0.05"))
    run(text)  # only the fast tier is for everybody
    output = run(text, "--tier", "fast", code=1)
    assert "test_it.py::test_spin took " in output
    assert "say why in pytest.mark.costly('...')" in output
    assert "test_it.py::test_it took " not in output  # that is its fixture
    mark = "@pytest.mark.costly('it spins')\ndef test_spin"
    run(text.replace("def test_spin", mark), "--tier", "fast")


BUDGETS = [  # tier, programs, cached, seconds of the compilation: budget
    ("thorough", 10, 5, 3.0, 80),
    ("thorough", 0, 0, 0.0, 60),
    ("thorough", 100, 98, 25.0, 85),  # few, but dear
    ("thorough", 100, 98, 90.0, 100),
    ("fast", 10, 10, 0.0, 30),
    ("", 10, 10, 0.0, 90),
]


def test_the_budget_of_a_suite_and_no_budget_of_ours_is_above_the_bar(tmp_path):
    text = '[tool.dovetail.budgets]\n"packages/one/tests" = { fast = 30, warm = 60, cold = 100 }\n'
    (tmp_path / "pyproject.toml").write_text(text)
    for tier, *compiled, cpu_s in BUDGETS:
        cost = Cost(1.0, *compiled)
        assert suite_times.budget("packages/one/tests", tier, cost, root=tmp_path) == cpu_s
        assert suite_times.budget("packages/two/tests", tier, cost, root=tmp_path) is None
    for suite, budget in suite_times.budgets().items():  # test_checks.py compares the suites
        assert budget["warm"] <= budget["cold"]
        assert budget["fast"] <= (90 if suite == "integration_tests" else 40)
