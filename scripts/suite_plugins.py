# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Pytest plugins that the root conftest.py registers: the cache's health, the cost of a suite."""

from __future__ import annotations

import warnings
from collections.abc import Generator
from pathlib import Path

import pytest

import compilation_cache
import suite_times
import workspace

CACHE, BUDGET = "compilation cache: ", "budget: "
NOTES = (CACHE, BUDGET)  # scripts/checks.py shows the lines that begin so
WHOLE = (workspace.USUAL_TESTS, f"{workspace.USUAL_TESTS} and not once")  # as in noxfile.py


def whole_suite(config: pytest.Config, root: Path) -> str | None:
    """The folder of the suite, such as "packages/data/tests", if at most marks narrow the run."""
    asked = config.option
    # Without pytest's cache plugin, these two options do not exist.
    again = config.getoption("lf", False) or config.getoption("stepwise", False)
    narrowed = asked.keyword or asked.deselect or asked.ignore or asked.ignore_glob
    narrowed = narrowed or again or asked.tier == "sample" or asked.markexpr not in WHOLE
    if narrowed or asked.collectonly or len(config.args) != 1:
        return None
    folder = (config.invocation_params.dir / config.args[0]).resolve()
    known = [root / "integration_tests", *root.glob("packages/*/tests")]
    return folder.relative_to(root).as_posix() if folder in known else None


class CacheHealth:
    """Bounds the compilation cache, and deletes the entries that JAX cannot read.

    Args:
        folder: The folder that JAX was given, None if the cache is off or the user's own.
        reason: Why the cache is off, if it could not be used.
    """

    def __init__(self, folder: str | None, reason: str) -> None:
        self.folder = Path(folder) if folder else None
        self.reason = reason
        if self.folder:
            compilation_cache.trim(self.folder.parent)

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage) -> None:
        """Repair the cache where JAX warns of an entry."""
        if self.folder:
            compilation_cache.repair(self.folder, str(warning_message.message))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say in one line why the cache is off."""
        if self.reason:
            terminalreporter.write_line(CACHE + self.reason)


class CostRecord:
    """Measures each test; fails a suite that takes half more than its budget.

    In the fast tier it also fails a test above twice `suite_times.FAST_TEST_S`, unless the marker
    `costly` gives a reason. A fixture that tests share counts for the suite alone.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.exercise_s = 0.0
        self.recorder = suite_times.Recorder()
        self.tests: dict[str, suite_times.Cost] = {}
        self.shared_s = 0.0  # CPU seconds of fixtures that tests share, in the test that runs
        self.own_s: dict[str, float] = {}  # CPU seconds without them of a test that is not costly
        self.lines: list[str] = []
        self.listed = 0  # tests to print

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Measure the machine. Others that are at work now may have ended when the suite ends."""
        if whole_suite(session.config, self.root) is not None:
            self.exercise_s = suite_times.exercise()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Measure one test, its fixtures included."""
        self.recorder.listen()
        before, self.shared_s = self.recorder.cost(), 0.0
        result = yield
        cost = self.recorder.cost().since(before)
        self.tests[item.nodeid] = cost
        if not item.get_closest_marker("costly"):
            self.own_s[item.nodeid] = cost.cpu_s - self.shared_s
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[object]
    ) -> Generator[None, object, object]:
        """Measure a fixture of a file or of the whole run. Those that it asks for ran before."""
        before_s = self.recorder.cost().cpu_s
        result = yield
        if fixturedef.scope != "function":
            self.shared_s += self.recorder.cost().cpu_s - before_s
        return result

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Compare a whole suite or tier that passed with its budget."""
        self.listed = session.config.getoption("durations") or 0
        suite = whole_suite(session.config, self.root)
        if suite is None or session.exitstatus != pytest.ExitCode.OK:
            return
        total, tier = self.recorder.cost(), session.config.option.tier or ""
        measured_s = max(self.exercise_s, suite_times.exercise(), suite_times.REFERENCE_S)
        slowness = measured_s / suite_times.REFERENCE_S
        budget_s = suite_times.budget(suite, tier, total, root=self.root)
        if budget_s is not None:
            title = f"{suite} {tier}".strip()
            of = f"{total.cpu_s:.0f} of {budget_s:.0f} CPU s"
            self.lines.append(f"{BUDGET}{title} took {of}, on a machine of {slowness:.2f}")
            if total.cpu_s > budget_s * suite_times.ALLOWANCE * slowness:
                self._fail(session, f"{title} took too much, these tests most: ")
                self.listed = self.listed or 10
        limit_s = suite_times.FAST_TEST_S * suite_times.TEST_ALLOWANCE * slowness
        for name, own_s in self.own_s.items() if tier == "fast" else ():
            if own_s > limit_s:
                self._fail(session, f"{name} took {own_s:.1f} CPU s, over {limit_s:.1f}: ")

    def _fail(self, session: pytest.Session, fault: str) -> None:
        advice = "make them smaller, mark them thorough, or say why in pytest.mark.costly('...')"
        self.lines.append(f"{BUDGET}{fault}{advice}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the cost against the budget, why a suite failed, and its dearest tests."""
        for line in [*self.lines, *suite_times.dearest(self.tests, self.listed)]:
            terminalreporter.write_line(line)
