# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Where the time of a test suite goes: a pytest plugin that records it, and a table of the records.

The root conftest.py loads the plugin. Each run of a suite leaves build/times/SUITE-pyXY.json: per
test its seconds, its CPU seconds (of this process and of the children that it waited for), the
programs that it asked XLA for, and how many of these came from the compilation cache.
`python scripts/suite_times.py` prints all records.

A suite has budgets of CPU seconds, [tool.dovetail.budgets] in pyproject.toml: `fast` for the fast
tier with nothing cached, `warm` for the thorough tier with each program from the cache, `cold` with
none. A run that takes more than 1.5 of its budget fails, and so does a test of the fast tier above
2 of FAST_TEST_S. Wall time decides nothing, since the machine may be busy. Budgets hold for the
machine on which REFERENCE_S was measured. On a slower one they grow by the same factor.
"""

from __future__ import annotations

import json
import os
import sys
import time
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import warm_start

ROOT = Path(__file__).resolve().parent.parent
FOLDER = Path("build/times")  # in the checkout; git ignores it
ALLOWANCE = 1.5
FAST_TEST_S = 1.5  # of one test
TEST_ALLOWANCE = 2.0  # one measurement varies more than the sum of a suite
REFERENCE_S = 0.023  # `exercise` on 2 cores of an AMD EPYC (Zen 5), Python 3.11
SLOWEST = 10


class Cost(NamedTuple):
    """Seconds, CPU seconds, programs asked for, and those that the cache had."""

    wall_s: float
    cpu_s: float
    programs: int
    cached: int

    def since(self, earlier: Cost) -> Cost:
        """The cost from `earlier` to now."""
        return Cost(*(b - a for a, b in zip(earlier, self, strict=True)))


class Recorder:
    """Counts what this process and its children cost so far."""

    def __init__(self) -> None:
        self.programs = self.cached = 0
        self.listening = False

    def listen(self) -> None:
        """Counts from now on, if JAX is imported; suites without JAX have nothing to count."""
        if self.listening or "jax" not in sys.modules:
            return
        import jax.monitoring

        jax.monitoring.register_event_duration_secs_listener(self._compiled)
        jax.monitoring.register_event_listener(self._loaded)
        self.listening = True

    def _compiled(self, event: str, duration_s: float, **_: object) -> None:
        self.programs += event == "/jax/core/compile/backend_compile_duration"

    def _loaded(self, event: str, **_: object) -> None:
        self.cached += event == "/jax/compilation_cache/cache_hits"

    def cost(self) -> Cost:
        """The cost since this process began."""
        cpu = sum(os.times()[:4])  # user and system, own and of children
        cpu += warm_start.cpu_s()
        return Cost(time.perf_counter(), cpu, self.programs, self.cached)


def exercise() -> float:
    """CPU seconds of a fixed piece of Python, the least of five: how fast this machine is now."""

    def once() -> float:
        begin = time.process_time()
        table: dict[int, int] = {}
        for i in range(300_000):
            table[i % 1009] = table.get(i % 1009, 0) + i
        return time.process_time() - begin

    return min(once() for _ in range(5))


def budgets(root: Path = ROOT) -> dict[str, dict[str, float]]:
    """The budgets by suite: {"packages/data/tests": {"fast": 40, "warm": 60, "cold": 80}}."""
    document = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    return document["tool"]["dovetail"]["budgets"]


def budget(suite: str, tier: str, cost: Cost, *, root: Path = ROOT) -> float | None:
    """CPU seconds that a suite should take at most, None if pyproject.toml has none for it.

    Args:
        suite: The folder of the suite, such as "packages/data/tests".
        tier: "fast", "thorough" or "" for both.
        cost: Cost of the run. The share of compiled programs lies between `warm` and `cold`.
        root: The checkout.
    """
    limits = budgets(root).get(suite)
    if limits is None or tier == "fast":
        return limits and limits["fast"]
    compiled = 1 - cost.cached / cost.programs if cost.programs else 0.0
    thorough_s = limits["warm"] + compiled * (limits["cold"] - limits["warm"])
    return thorough_s + (0 if tier else limits["fast"])


def write(suite: str, tier: str, total: Cost, tests: dict[str, Cost], *, folder: Path) -> Path:
    """Keeps the record of one run of a suite or tier, in place of the last one; its file."""
    folder.mkdir(parents=True, exist_ok=True)
    version = f"py{sys.version_info.major}{sys.version_info.minor}"
    name = "-".join(filter(None, [suite.replace("/", "-"), tier, version]))
    file = folder / f"{name}.json"
    document = {"suite": suite, "total": total, "tests": tests}
    beside = file.with_suffix(f".{os.getpid()}")
    beside.write_text(json.dumps(document), encoding="utf-8")
    beside.replace(file)  # in one step, so that an interrupted run leaves the older record whole
    return file


def table(document: dict[str, Any], title: str) -> str:
    """The lines of one record: totals, then the slowest tests by CPU seconds."""
    total = Cost(*document["total"])
    lines = [
        f"{title}: {total.wall_s:.0f} s, {total.cpu_s:.0f} CPU s, {len(document['tests'])} tests, "
        f"{total.programs} programs, {total.programs - total.cached} of them compiled"
    ]
    ranked = sorted(document["tests"].items(), key=lambda test: -test[1][1])
    for name, row in ranked[:SLOWEST]:
        cost = Cost(*row)
        short = name.removeprefix(f"{document['suite']}/")
        lines.append(
            f"  {cost.wall_s:6.1f} s {cost.cpu_s:6.1f} CPU s "
            f"{cost.programs - cost.cached:4d} compiled  {short}"
        )
    return "\n".join(lines)


def main(folder: Path = ROOT / FOLDER) -> int:
    """Prints every record, and the sum of all; the exit status is 1 if there is none."""
    files = sorted(folder.glob("*.json"))
    if not files:
        print(f"no suite has been run: {folder} holds no record", file=sys.stderr)
        return 1
    total_s = 0.0
    for file in files:
        document = json.loads(file.read_text(encoding="utf-8"))
        total_s += document["total"][1]
        print(table(document, file.stem))
    print(f"all: {total_s / 60:.1f} CPU minutes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
