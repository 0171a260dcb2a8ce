# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Lint, check the format, and run every suite, each in a process of its own, two at a time.

The suites are strict in ways that are global to a process (types checked by import hooks, dtype
promotion, forced devices), so one process cannot hold two of them; and compilation keeps one core
busy at a time, so two processes finish in little more than half the time of one after another.
"""

from __future__ import annotations

import concurrent.futures
import subprocess
import sys
import time

import suite_plugins
import suite_times
import workspace

AT_A_TIME = 2


def suites() -> list[str]:
    """Folders of tests. The longest begin first, so that none is left running alone at the end."""
    folders = [f"packages/{m.folder}/tests" for m in workspace.members().values()]
    budgets = suite_times.budgets()
    unknown = {"warm": float("inf")}  # a new suite
    return sorted([*folders, "integration_tests"], key=lambda s: -budgets.get(s, unknown)["warm"])


def run(name: str, line: list[str]) -> tuple[bool, str]:
    """Run one check; whether it passed, and all that it printed."""
    print(f"{name}: running\n", end="", flush=True)  # one write: two threads share the terminal
    done = subprocess.run(
        [sys.executable, "-m", *line],
        cwd=workspace.ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    killed = f"killed by signal {-done.returncode}\n" if done.returncode < 0 else ""
    return done.returncode == 0, done.stdout + killed


def main() -> int:
    """Run all; the exit status is 1 if anything failed."""
    checks = {"ruff check": ["ruff", "check"], "ruff format": ["ruff", "format", "--check"]}
    checks |= {suite: ["pytest", "--quiet", suite] for suite in suites()}
    failed, started = [], time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(AT_A_TIME) as pool:
        running = {pool.submit(run, name, line): name for name, line in checks.items()}
        for future in concurrent.futures.as_completed(running):
            passed, output = future.result()
            name = running[future]
            failed += [] if passed else [name]
            closing = output.strip().splitlines()[-1] if output.strip() else "passed"
            notes = [x for x in output.splitlines() if x.startswith(suite_plugins.NOTE)]
            closing = "\n    ".join([closing, *notes])
            print(f"{name}: {closing}" if passed else f"{name}: FAILED\n{output}", flush=True)
    minutes = (time.monotonic() - started) / 60
    if failed:
        print(f"scripts/test: FAILED after {minutes:.1f} minutes: {', '.join(failed)}")
        if "ruff format" in failed:
            print("    .venv/bin/ruff format   mends the format")
        return 1
    print(f"scripts/test: all {len(checks)} checks passed in {minutes:.1f} minutes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
