# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Lint, check the format, and run every suite, each in a process of its own, two at a time.

With arguments, the nox sessions of those names in the same manner: `tests-3.12` stands for the
session of every package. `--times` adds a table of where the time of each suite went.

The suites are strict in ways that are global to a process (types checked by import hooks, dtype
promotion, forced devices), so one process cannot hold two of them; and compilation keeps one core
busy at a time, so two processes finish in little more than half the time of one after another.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import signal
import subprocess
import sys
import time

import suite_plugins
import suite_times
import workspace

AT_A_TIME = 2
INTERRUPTED = 130  # as a shell reports it
_running: set[subprocess.Popen[str]] = set()


def suites() -> list[str]:
    """Folders of tests. The longest begin first, so that none is left running alone at the end."""
    folders = [f"packages/{m.folder}/tests" for m in workspace.members().values()]
    return sorted([*folders, "integration_tests"], key=_longest_first)


def _longest_first(suite: str) -> float:
    budget = suite_times.budgets().get(suite)
    return -budget["warm"] if budget else -float("inf")  # a new suite may be of any length


def commands(sessions: list[str]) -> dict[str, list[str]]:
    """The checks by name, with the module and arguments that Python runs for each."""
    if not sessions:
        lint = {"ruff check": ["ruff", "check"], "ruff format": ["ruff", "format", "--check"]}
        return lint | {suite: ["pytest", "--quiet", suite] for suite in suites()}
    names = []
    for session in sessions:
        each = session.startswith(("tests-", "bare-")) and "(" not in session
        folders = sorted(workspace.members(), key=lambda f: _longest_first(f"packages/{f}/tests"))
        names += [f"{session}({folder})" for folder in folders] if each else [session]
    return {name: ["nox", "--session", name] for name in names}


def run(name: str, line: list[str]) -> tuple[bool, str, float, float]:
    """Runs one check. Returns whether it passed, its output, its seconds and CPU seconds."""
    started = time.monotonic()
    print(f"{name}: running\n", end="", flush=True)  # one write: two threads share the terminal
    process = subprocess.Popen(
        [sys.executable, "-m", *line],
        cwd=workspace.ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""},  # as in the root conftest.py
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    _running.add(process)
    assert process.stdout is not None
    with process.stdout as pipe:
        output = pipe.read()
    # Popen.wait does not tell what the process and its children cost.
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    _running.discard(process)
    killed = f"killed by signal {-process.returncode}\n" if process.returncode < 0 else ""
    cpu_s = usage.ru_utime + usage.ru_stime
    return process.returncode == 0, output + killed, time.monotonic() - started, cpu_s


def closing(output: str) -> str:
    """The last line of a check that passed, and what it says of the compilation cache."""
    lines = output.strip().splitlines() or ["passed"]
    notes = [line for line in lines if line.startswith(suite_plugins.NOTE)]
    # nox ends with a line of its own, after that of pytest.
    counted = [line for line in lines if " passed" in line and " in " in line]
    return "\n    ".join([(counted or lines)[-1].strip("= "), *notes])


def run_all(checks: dict[str, list[str]]) -> list[str]:
    """Run the checks, two at a time; the names of those that failed."""
    failed = []
    with concurrent.futures.ThreadPoolExecutor(AT_A_TIME) as pool:
        running = {pool.submit(run, name, line): name for name, line in checks.items()}
        try:
            for future in concurrent.futures.as_completed(running):
                passed, output, wall_s, cpu_s = future.result()
                name = running[future]
                failed += [] if passed else [name]
                text = closing(output) if passed else f"FAILED\n{output}"
                print(f"{name} ({wall_s:.0f} s, {cpu_s:.0f} CPU s): {text}", flush=True)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(_running):
                process.terminate()
            raise
    return failed


def main() -> int:
    """Run all; the exit status is 1 if anything failed, 130 if it was interrupted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--times", action="store_true", help="end with a table of the suites' time")
    parser.add_argument("sessions", nargs="*", metavar="SESSION", help="of noxfile.py")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    checks, started = commands(asked.sessions), time.monotonic()
    try:
        failed = run_all(checks)
    except KeyboardInterrupt:
        print("interrupted; the same command begins anew", file=sys.stderr)
        return INTERRUPTED
    minutes = (time.monotonic() - started) / 60
    if asked.times:
        suite_times.main()
    title = "sessions" if asked.sessions else "scripts/test"
    if failed:
        print(f"{title}: FAILED after {minutes:.1f} minutes: {', '.join(failed)}")
        if "ruff format" in failed:
            print("    .venv/bin/ruff format   mends the format")
        return 1
    print(f"{title}: all {len(checks)} checks passed in {minutes:.1f} minutes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
