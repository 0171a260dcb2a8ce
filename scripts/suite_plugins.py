# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Pytest plugins that the root conftest.py registers: the cache's health, samples and cost."""

from __future__ import annotations

import time
import warnings
from collections.abc import Generator
from pathlib import Path

import pytest

import compilation_cache
import suite_sample
import suite_times

NOTE = "compilation cache: "  # scripts/checks.py shows the lines that begin so


def whole_suite(config: pytest.Config, root: Path) -> str | None:
    """The folder of the suite, such as "packages/data/tests", if at most marks narrow the run."""
    asked = config.option
    # Without pytest's cache plugin, these two options do not exist.
    again = config.getoption("lf", False) or config.getoption("stepwise", False)
    narrowed = asked.keyword or asked.deselect or asked.ignore or asked.ignore_glob
    sampled = config.pluginmanager.has_plugin(suite_sample.SAMPLE)
    if narrowed or sampled or again or asked.collectonly or len(config.args) != 1:
        return None
    folder = (config.invocation_params.dir / config.args[0]).resolve()
    known = [root / "integration_tests", *root.glob("packages/*/tests")]
    return folder.relative_to(root).as_posix() if folder in known else None


class CacheHealth:
    """Bounds the compilation cache, repairs its entries, says in a line what could not be used.

    Args:
        folder: The folder that JAX was given, None if the cache is off or the user's own.
        reason: Why the cache is off, if it could not be used.
    """

    def __init__(self, folder: str | None, reason: str) -> None:
        self.folder = Path(folder) if folder else None
        self.reason = reason
        self.faults: list[str] = []
        if self.folder:
            compilation_cache.trim(self.folder.parent)

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage) -> None:
        """Repair the cache where JAX warns of an entry."""
        text = str(warning_message.message)
        if self.folder and compilation_cache.repair(self.folder, text):
            self.faults.append(text)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Protect new entries; keep the warnings from filling several lines each."""
        if self.folder:
            compilation_cache.protect(self.folder)
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter and self.faults:
            recorded = reporter.stats["warnings"]
            reporter.stats["warnings"] = [
                report for report in recorded if not compilation_cache.FAULT.search(report.message)
            ]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say in one line what could not be used."""
        if self.reason:
            terminalreporter.write_line(NOTE + self.reason)
        if self.faults:
            terminalreporter.write_line(
                f"{NOTE}{len(self.faults)} entries could not be read or written and were compiled "
                f"anew: {self.faults[0].splitlines()[0]}"
            )


class CaseSample:
    """Deselects cases, see suite_sample; the summary counts them."""

    @pytest.hookimpl(trylast=True)  # after the selection by marks and names
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Take the cases out of `items`."""
        out = suite_sample.left_out([item.nodeid for item in items])
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in out])
        items[:] = [item for item in items if item.nodeid not in out]


class CostRecord:
    """Records what each test costs; fails a whole suite that takes half more than its budget."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.begin_s = time.perf_counter()
        self.exercise_s = 0.0
        self.recorder = suite_times.Recorder()
        self.tests: dict[str, suite_times.Cost] = {}
        self.excess = ""

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Measure the machine. Others that are at work now may have ended when the suite ends."""
        if whole_suite(session.config, self.root) is not None:
            self.exercise_s = suite_times.exercise()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Measure one test, its fixtures included."""
        self.recorder.listen()
        before = self.recorder.cost()
        result = yield
        self.tests[item.nodeid] = self.recorder.cost().since(before)
        return result

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Keep the record of a whole suite that passed, and compare it with its budget."""
        suite = whole_suite(session.config, self.root)
        whole = session.config.option.markexpr in suite_times.WHOLE
        if suite is None or not whole or session.exitstatus != pytest.ExitCode.OK:
            return
        cost = self.recorder.cost()
        total = cost._replace(wall_s=cost.wall_s - self.begin_s)
        suite_times.write(suite, total, self.tests, folder=self.root / suite_times.FOLDER)
        slowness = max(self.exercise_s, suite_times.exercise()) / suite_times.REFERENCE_S
        limit_s = suite_times.allowed(suite, total, slowness=slowness, root=self.root)
        if limit_s is not None and total.cpu_s > limit_s:
            self.excess = (
                f"{suite} took {total.cpu_s:.0f} CPU seconds and may take {limit_s:.0f}, half more "
                "than its budget in pyproject.toml. 'python scripts/suite_times.py' lists its "
                "slowest tests: make them smaller, or raise the budget and say why"
            )
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say why a suite failed that has no failed test."""
        if self.excess:
            terminalreporter.write_line(self.excess)
