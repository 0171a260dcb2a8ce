# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What a test suite costs: a recorder for the root conftest.py, and the budgets.

Of each test it knows the CPU seconds (of this process and of the children that it waited for), the
programs that it asked XLA for, and how many of these came from the compilation cache.
`pytest --durations=10` prints the dearest tests.

A suite has budgets of CPU seconds, [tool.dovetail.budgets] in pyproject.toml: `fast` for the fast
tier with nothing cached, `warm` for the thorough tier with each program from the cache, `cold` with
none. A run that takes more than 1.5 of its budget fails, and so does a test of the fast tier above
2 of FAST_TEST_S. Wall time decides nothing, since the machine may be busy. Budgets hold for the
machine on which REFERENCE_S was measured. On a slower one they grow by the same factor.
"""

from __future__ import annotations

import os
import sys
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import warm_start
import workspace

ALLOWANCE = 1.5
FAST_TEST_S = 1.5  # of one test
TEST_ALLOWANCE = 2.0  # one measurement varies more than the sum of a suite
REFERENCE_S = 0.023  # `exercise` on 2 cores of an AMD EPYC (Zen 5), Python 3.11


class Cost(NamedTuple):
    """CPU seconds, programs asked for, those that the cache had, and seconds for the others."""

    cpu_s: float
    programs: int
    cached: int
    compile_s: float = 0.0

    def since(self, earlier: Cost) -> Cost:
        """The cost from `earlier` to now."""
        return Cost(*(b - a for a, b in zip(earlier, self, strict=True)))


class Recorder:
    """Counts what this process and its children cost so far."""

    def __init__(self) -> None:
        self.programs = self.cached = 0
        self.compile_s = 0.0
        self.listening = self._hit = False

    def listen(self) -> None:
        """Counts from now on, if JAX is imported; suites without JAX have nothing to count."""
        if self.listening or "jax" not in sys.modules:
            return
        import jax.monitoring

        jax.monitoring.register_event_duration_secs_listener(self._compiled)
        jax.monitoring.register_event_listener(self._loaded)
        self.listening = True

    def _compiled(self, event: str, duration_s: float, **_: object) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            self.programs += 1
            self.compile_s += 0.0 if self._hit else duration_s
            self._hit = False

    def _loaded(self, event: str, **_: object) -> None:
        hit = event == "/jax/compilation_cache/cache_hits"  # before the duration
        self.cached, self._hit = self.cached + hit, self._hit or hit

    def cost(self) -> Cost:
        """The cost since this process began."""
        cpu_s = sum(os.times()[:4]) + warm_start.cpu_s()  # user and system, own and of children
        return Cost(cpu_s, self.programs, self.cached, self.compile_s)


def exercise() -> float:
    """CPU seconds of a fixed piece of Python, the least of five: how fast this machine is now."""
    times = []
    for _ in range(5):
        begin, table = time.process_time(), {}
        for i in range(300_000):
            table[i % 1009] = table.get(i % 1009, 0) + i
        times.append(time.process_time() - begin)
    return min(times)


def budgets(root: Path = workspace.ROOT) -> dict[str, dict[str, float]]:
    """The budgets by suite: {"packages/data/tests": {"fast": 40, "warm": 60, "cold": 80}}."""
    document = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    return document["tool"]["dovetail"]["budgets"]


def budget(suite: str, tier: str, cost: Cost, *, root: Path = workspace.ROOT) -> float | None:
    """CPU seconds that a suite should take at most, None if pyproject.toml has none for it.

    Args:
        suite: The folder of the suite, such as "packages/data/tests".
        tier: "fast", "thorough" or "" for both.
        cost: Cost of the run. Compiled programs, by their share or by their time, allow more than
            `warm`, and at most `cold`: a change of the training step leaves few others, but dear.
        root: The checkout.
    """
    limits = budgets(root).get(suite)
    if limits is None or tier == "fast":
        return limits and limits["fast"]
    compiled = 1 - cost.cached / cost.programs if cost.programs else 0.0
    room_s = limits["cold"] - limits["warm"]
    thorough_s = limits["warm"] + max(compiled * room_s, min(cost.compile_s, room_s))
    return thorough_s + (0 if tier else limits["fast"])


def dearest(tests: Mapping[str, Cost], count: int) -> list[str]:
    """A line for each of the `count` tests of most CPU seconds."""
    ranked = sorted(tests.items(), key=lambda test: -test[1].cpu_s)[:count]
    return [f"{c.cpu_s:6.1f} CPU s {c.programs - c.cached:4d} compiled  {t}" for t, c in ranked]
