# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The tiers of the suites: the tests that `pytest --tier fast|thorough|sample` takes.

- fast: for a person who needs to trust this machine. The tests without the marker `thorough`, and
  of a parametrized test one case.
- thorough: all that the fast tier leaves out.
- sample: every test function, with one case. The second Python runs this of packages.

A checksum of a test's name chooses the case, so the functions of a suite do not all meet the same
family, device or dtype. Without the option all tests run.
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from collections import defaultdict
from collections.abc import Generator, Mapping
from pathlib import Path

import pytest

import suite_times
import workspace

TIERS = ("fast", "thorough", "sample")


def taken(tests: Mapping[str, bool], tier: str) -> set[str]:
    """The tests of a tier, from all tests by node id, with whether each is marked `thorough`."""
    if tier == "sample":
        return _one_case(list(tests))
    fast = _one_case([name for name, thorough in tests.items() if not thorough])
    return fast if tier == "fast" else tests.keys() - fast


def _one_case(names: list[str]) -> set[str]:
    cases = defaultdict(list)
    for name in names:
        cases[name.partition("[")[0]].append(name)
    return {own[zlib.crc32(test.encode()) % len(own)] for test, own in cases.items()}


class Tier:
    """Deselects the tests of the other tiers; the summary counts them."""

    def __init__(self, tier: str) -> None:
        self.tier = tier
        if tier == "fast":
            self._lower_optimization()

    @staticmethod
    def _lower_optimization() -> None:
        """Let XLA compile in .6 of the CPU seconds. The other tiers compile as users do."""
        os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "true"  # of programs that tests start
        if "jax" in sys.modules:  # a suite's conftest has imported it
            import jax

            jax.config.update("jax_disable_most_optimizations", True)

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Leave out files that are thorough as a whole: to import them costs seconds."""
        if self.tier != "fast" or not collection_path.name.startswith("test_"):
            return None
        text = collection_path.read_text(encoding="utf-8")
        return workspace.wholly_thorough(text) or None

    @pytest.hookimpl(trylast=True)  # after the selection by marks and names
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Take the other tests out of `items`."""
        marked = {i.nodeid: i.get_closest_marker("thorough") is not None for i in items}
        kept = taken(marked, self.tier)
        config.hook.pytest_deselected(items=[i for i in items if i.nodeid not in kept])
        items[:] = [i for i in items if i.nodeid in kept]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Let a tier without a test pass: a file may have none of it."""
        if session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK


class Outcomes:
    """Writes the outcome of each file of tests, for .ci/run to put on record.

    Args:
        file: JSON object by file name: {"passed": bool, "cpu_s": float}.
        tests: Costs of the tests so far, by node id.
    """

    def __init__(self, file: Path, tests: Mapping[str, suite_times.Cost]) -> None:
        self.file, self.tests = file, tests
        self.failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a failed setup, call or teardown."""
        if report.failed:
            self.failed.add(Path(report.nodeid.partition("::")[0]).name)

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, None, None]:
        """Write the file, unless an interrupt or a file that cannot be imported ended the run."""
        yield
        ended = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        if session.exitstatus not in (*ended, pytest.ExitCode.NO_TESTS_COLLECTED):
            return
        cost: dict[str, float] = defaultdict(float)
        for test, spent in self.tests.items():
            cost[Path(test.partition("::")[0]).name] += spent.cpu_s
        asked = [Path(argument).name for argument in session.config.args]
        found = {n: {"passed": n not in self.failed, "cpu_s": cost[n]} for n in asked}
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json.dumps(found), encoding="utf-8")
