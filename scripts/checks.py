# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Runs checks, some at a time, each in a process of its own.

Without an option these are lint, format and the fast tier of every suite (`scripts/test`). `--all`
takes the whole suites. `--landing` (`.ci/run`) adds types, imports and all other checks, and leaves
out those whose key is on record as passed.

The suites are strict in ways that are global to a process (types checked by import hooks, dtype
promotion, forced devices), so one process cannot hold two of them. Compilation keeps one core busy
at a time, so two processes take little more than half the time of one after another. The fast tiers
wait for processes a third of their time: three of them run at once.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import changed
import passed
import reach
import suite_plugins
import suite_times
import workspace

AT_A_TIME, OF_A_PERSON = 2, 3
WAITING = ("packages/cluster/tests", "integration_tests")  # the most, so they begin first
INTERRUPTED = 130  # as a shell reports it
UNKNOWN_S = 100.0  # of a check that has never passed
ALWAYS = ("types", "imports")
GRACE_S = 10.0  # for a job to end when it is told to
_running: set[subprocess.Popen[str]] = set()
_locks: list[int] = []  # file descriptors that each job inherits


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """One process."""

    name: str
    line: Sequence[str]  # arguments of Python
    checks: Sequence[str] = ()  # on record, that it makes
    cost_s: float = UNKNOWN_S  # CPU seconds to expect

    @property
    def outcomes_file(self) -> str:
        """Path of the outcomes of its files of tests, relative to the checkout."""
        return f"build/outcomes/{self.name.replace(' ', '-')}.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """The end of a job."""

    job: Job
    passed: bool
    output: str
    wall_s: float
    cpu_s: float


def of_a_person(*, whole: bool = False) -> list[Job]:
    """Lint, format, and each suite's fast tier, or the whole suite.

    Those that wait and the longest begin first, so that none is left running alone at the end.
    """
    budgets = suite_times.budgets()
    suites = sorted(budgets, key=lambda s: (s not in WAITING, -budgets[s]["warm"]))
    jobs = [Job(name="ruff check", line=["ruff", "check"])]
    jobs += [Job(name="ruff format", line=["ruff", "format", "--check"])]
    tier, title = ([], "") if whole else (["--tier", "fast"], " fast")
    return jobs + [Job(name=s + title, line=["pytest", "--quiet", *tier, s]) for s in suites]


def of_checks(checks: Iterable[changed.Check], costs: dict[str, float]) -> list[Job]:
    """The processes for checks on record. Those that share an environment share a process."""
    groups: dict[str, list[changed.Check]] = {}
    for check in checks:
        own = check.group in ("thorough-3.11", "bare-3.11", "bare-3.12", "tests-3.12")
        group = check.group.replace("doctests", "integration")
        groups.setdefault(check.name if own else group, []).append(check)
    jobs = []
    for name, members in groups.items():
        whole = name.startswith("integration-3.11")
        for number, batch in enumerate(_batches(members, costs) if whole else [members], 1):
            title = f"{name} {number}" if whole else name
            jobs.append(_job(title, batch, sum(costs.get(c.name, UNKNOWN_S) for c in batch)))
    return sorted(jobs, key=lambda job: -job.cost_s)


def _batches(checks: list[changed.Check], costs: dict[str, float]) -> list[list[changed.Check]]:
    """Deals checks out, the dearest first, into as many batches as run at a time."""
    ordered = sorted(checks, key=lambda c: -costs.get(c.name, UNKNOWN_S))
    return [batch for i in range(AT_A_TIME) if (batch := ordered[i::AT_A_TIME])]


def _job(name: str, checks: list[changed.Check], cost_s: float) -> Job:
    group, units = checks[0].group.replace("doctests", "integration"), [c.unit for c in checks]
    files = list(dict.fromkeys(_file(check.name) for check in checks))
    files += [f"--doctests={c.unit}" for c in checks if c.group.startswith("doctests")]
    job = Job(name=name, line=[], checks=[c.name for c in checks], cost_s=cost_s)
    session = ["nox", "--session", name]
    outcomes = ["--outcomes", job.outcomes_file]
    if group == "thorough-3.11":
        line = ["pytest", "--quiet", "--tier", "thorough", f"packages/{units[0]}/tests"]
    elif group == "integration-3.11":
        line = ["pytest", "--quiet", "--tier", "thorough", *outcomes, *files]
    elif group == "integration-3.12":
        line = [*session, "--", "--tier", "fast", *outcomes, *files]
    elif group == "tests-3.12":
        line = [*session, "--", "--tier", "sample"]
    else:
        line = [*session, *(["--", *units] if any(units) and group == name else [])]
    return dataclasses.replace(job, line=line)


def _file(name: str) -> str:
    """The integration test that makes a check."""
    unit = name.partition("(")[2].removesuffix(")")
    return changed.DOCTESTS if name.startswith("doctests") else f"integration_tests/{unit}"


def run(job: Job) -> Result:
    """Runs one job to its end."""
    started = time.monotonic()
    print(f"{job.name}: running\n", end="", flush=True)  # one write: two threads share the terminal
    (workspace.ROOT / job.outcomes_file).unlink(missing_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-m", *job.line],
        cwd=workspace.ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""},  # as in the root conftest.py
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        pass_fds=_locks,
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
    return Result(
        job=job,
        passed=process.returncode == 0,
        output=output + killed,
        wall_s=time.monotonic() - started,
        cpu_s=usage.ru_utime + usage.ru_stime,
    )


def closing(output: str) -> str:
    """The last line of a check that passed, and its notes on the cache and on the budget."""
    lines = output.strip().splitlines() or ["passed"]
    notes = [line for line in lines if line.startswith(suite_plugins.NOTES)]
    # nox ends with a line of its own, after that of pytest.
    counted = [line for line in lines if " passed" in line and " in " in line]
    return "\n    ".join([(counted or lines)[-1].strip("= "), *notes])


def run_all(
    jobs: Sequence[Job],
    ended: Callable[[Result], None] = lambda result: None,
    *,
    at_a_time: int = AT_A_TIME,
) -> list[str]:
    """Runs the jobs in this order. Returns the names of those that failed."""
    failed = []
    with concurrent.futures.ThreadPoolExecutor(at_a_time) as pool:
        try:
            for future in concurrent.futures.as_completed([pool.submit(run, job) for job in jobs]):
                result = future.result()
                ended(result)
                failed += [] if result.passed else [result.job.name]
                text = closing(result.output) if result.passed else f"FAILED\n{result.output}"
                cost = f"{result.wall_s:.0f} s, {result.cpu_s:.0f} CPU s"
                print(f"{result.job.name} ({cost}): {text}", flush=True)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(_running):
                process.terminate()
            until = time.monotonic() + GRACE_S
            while _running and time.monotonic() < until:
                time.sleep(0.1)
            for process in list(_running):  # a test may have left a handler of SIGTERM
                process.kill()
            raise
    return failed


def outcomes(result: Result) -> dict[str, float]:
    """CPU seconds of the checks of a job that passed, also of a job that failed in other files."""
    file = workspace.ROOT / result.job.outcomes_file
    if "--outcomes" not in result.job.line:
        share = result.cpu_s / max(1, len(result.job.checks))
        return dict.fromkeys(result.job.checks, share) if result.passed else {}
    by_file = json.loads(file.read_text()) if file.exists() else {}  # it was killed
    found = {c: by_file.get(Path(_file(c)).name) for c in result.job.checks}
    return {c: outcome["cpu_s"] for c, outcome in found.items() if outcome and outcome["passed"]}


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Waits until no other `.ci/run` works in this checkout.

    Each job holds the lock, too: those of a killed run go on, and write into .nox and build/.
    """
    file = workspace.ROOT / "build" / "landing-lock"
    file.parent.mkdir(exist_ok=True)
    with file.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waits for the jobs of another .ci/run, which may have been killed", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        _locks.append(lock.fileno())
        yield
        _locks.clear()


def landing(*, everything: bool) -> list[str]:
    """What must pass before a commit lands. Returns the names of the jobs that failed."""
    tree = reach.Tree()
    keys, root = changed.keys(tree), workspace.ROOT
    known = passed.standing(root, keys, everything=everything)
    checks = [check for check in changed.checks(tree) if check.name not in known.passed]
    always = [Job(name=name, line=["nox", "--session", name]) for name in ALWAYS]
    jobs = [*of_a_person(), *always, *of_checks(checks, dict(known.costs))]
    print(table(jobs, known), flush=True)
    blocked = passed.unusable(root)

    def record(result: Result) -> None:
        if not blocked and (found := outcomes(result)):
            passed.add(root, found, keys)

    failed = run_all(jobs, record)
    if blocked:
        print(f"nothing is recorded: {blocked}")
    elif not failed:
        whole = "every check has passed; " if passed.close(root, keys) else ""
        print(f"{reach.RECORD}: {whole}commit it")
    return failed


def table(jobs: Sequence[Job], known: passed.Standing) -> str:
    """The jobs that run, and what the checks on record save."""
    lines = [f"runs: {len(jobs)} jobs" + (f" ({known.reason})" if known.reason else "")]
    for job in jobs:
        of = "" if len(job.checks) < 2 else f": {len(job.checks)} checks"
        lines.append(f"  {job.name}{of}")
    saved_s = sum(record.cpu_s for record in known.passed.values())
    lines.append(f"leaves out: {len(known.passed)} checks of {saved_s:.0f} CPU s, passed before")
    age = f"{known.whole.days(passed.today())} days ago" if known.whole else "not on record"
    return "\n".join([*lines, f"last whole pass: {age}"])


def main() -> int:
    """Run all; the exit status is 1 if anything failed, 130 if it was interrupted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--all", action="store_true", help="whole suites")
    kind.add_argument("--landing", action="store_true", help="what must pass before a commit lands")
    parser.add_argument("--everything", action="store_true", help="let no record count")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    started = time.monotonic()
    try:
        if asked.landing:
            with alone():
                title, failed = ".ci/run", landing(everything=asked.everything)
        else:
            jobs = of_a_person(whole=asked.all)
            together = AT_A_TIME if asked.all else OF_A_PERSON
            title, failed = "scripts/test", run_all(jobs, at_a_time=together)
    except KeyboardInterrupt:
        print("interrupted; the same command begins anew", file=sys.stderr)
        return INTERRUPTED
    minutes = (time.monotonic() - started) / 60
    if failed:
        print(f"{title}: FAILED after {minutes:.1f} minutes: {', '.join(failed)}")
        if "ruff format" in failed:
            print("    .venv/bin/ruff format   mends the format")
        return 1
    print(f"{title}: all checks passed in {minutes:.1f} minutes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
