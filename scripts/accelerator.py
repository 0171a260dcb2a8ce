# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""One session on an accelerator: correctness first, then figures, from all packages.

    scripts/accelerator --state session.json            # call again until nothing is left
    scripts/accelerator --tiny kernels.attention optim  # a package, or one step of it

It needs this checkout and a Python with jax ($PYTHON, or python3), and installs nothing. The steps
are declared in packages/NAME/benchmarks/accelerator.py. They run by value, each in a process of its
own with a time limit; one that fails does not stop the others. A step that lacks a distribution is
skipped, and the distribution named.

Standard output has one JSON line per figure and a last line of counts; progress is on standard
error. Exit codes: 0 all fine, 1 a step failed or took too long, 2 usage, 130 interrupted.

Steps without times compile much and compute little. They run first, --together at once, and share
the device's memory; all others run alone.

After --limit-s seconds the session ends. A step starts if half of its own limit is left, or if it
is the first. One that runs when the session ends is stopped, and the next call with the same
--state runs it again. Steps that are done, failed or too slow are not run again: delete a step's
entry in the state file to repeat it. On a CPU all shapes are tiny: a test of the session itself.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import difflib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from accelerator_record import FINISHED, Record, Unusable
from accelerator_step import MISSING, ROOT, Step, catalog, sources

CLOSING_S = 1.0  # for the last line, and for a step's traceback before it is killed
PROBE = """
import json, jax
device = jax.devices()[0]
print(json.dumps({"platform": device.platform, "device": device.device_kind}))
"""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def environment() -> dict[str, str]:
    path = [*sources(), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}


def most_together() -> int:
    return min(8, max(1, (os.cpu_count() or 1) // 2))


def probe() -> dict[str, Any]:
    """Platform and kind of JAX's first device, from a process that gives it back."""
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise Unusable(
            f"the session needs a Python in which jax finds a device, got {sys.executable}: {last}."
            " Set PYTHON to another."
        )
    return json.loads(done.stdout.splitlines()[-1])


def select(steps: dict[str, Step], names: list[str]) -> dict[str, Step]:
    """The steps of the packages and steps that are named; all if none is."""
    packages = {name.split(".")[0] for name in steps}
    for name in names:
        if name not in steps and name not in packages:
            near = difflib.get_close_matches(name, [*packages, *steps], n=3)
            hint = f"Did you mean {', '.join(near)}?" if near else "--list shows them."
            raise Unusable(f"a package or PACKAGE.STEP must be named, got {name}. {hint}")
    wanted = {n: s for n, s in steps.items() if n in names or n.split(".")[0] in names}
    return wanted if names else steps


def run(
    name: str,
    limit_s: float,
    *,
    tiny: bool,
    variables: dict[str, str],
    running: "set[subprocess.Popen[str]]",
) -> dict[str, Any]:
    """One step in its process: `outcome` ("done", "failed", "timed out" or "missing"), counts.

    `running` has the process while it lives.
    """
    entry: dict[str, Any] = {"figures": 0, "passed": 0, "failed": 0}
    own_s = max(limit_s - CLOSING_S, limit_s / 2)
    file = str(ROOT / "scripts" / "accelerator_step.py")
    begin = time.monotonic()
    command = [sys.executable, file, name, "--until", f"{begin + own_s:.3f}", *["--tiny"] * tiny]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        env=variables,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    ) as process:
        running.add(process)
        timer = threading.Timer(limit_s, _kill, [process])
        timer.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                _pass_on(line, entry)
            process.wait()
        finally:  # also when the session is interrupted
            timer.cancel()
            _kill(process)
            running.discard(process)
    elapsed_s = time.monotonic() - begin
    slow = process.returncode != 0 and elapsed_s >= own_s
    outcomes = {0: "done", MISSING: "missing"}
    entry["outcome"] = "timed out" if slow else outcomes.get(process.returncode, "failed")
    entry["seconds"] = round(elapsed_s, 1)
    return entry


def _kill(process: subprocess.Popen[str]) -> None:
    """The step, and what it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _pass_on(line: str, entry: dict[str, Any]) -> None:
    """A figure to standard output, anything else that a step prints to standard error."""
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        print(line, end="", file=sys.stderr, flush=True)
    elif "missing" in found:
        entry["missing"] = found["missing"]
    else:
        print(line, end="", flush=True)
        entry["figures"] += 1
        for count in ("passed", "failed"):
            entry[count] += found.get(count, 0)


class Session:
    """Runs the steps that a record lacks.

    Args:
        record: What became of earlier steps; those of this session are added.
        tiny: Tiny shapes.
        deadline: End, by time.monotonic().

    Attributes:
        skipped: Steps that were skipped, and the distribution that each lacks.
    """

    def __init__(self, record: Record, *, tiny: bool, deadline: float) -> None:
        self.skipped: dict[str, str] = {}
        self._record, self._tiny, self._deadline = record, tiny, deadline
        self._first = True
        self._variables = environment()
        self._running: set[subprocess.Popen[str]] = set()
        self._interrupted = False

    def run(self, steps: dict[str, Step], *, together: int) -> None:
        """Runs steps without times, `together` at once, then the others one by one."""
        checks = {name: step for name, step in steps.items() if not step.timed}
        pool = concurrent.futures.ThreadPoolExecutor(together)
        try:
            jobs = [pool.submit(self._one, *item, alone=together == 1) for item in checks.items()]
            for job in jobs:
                job.result()
        except KeyboardInterrupt:
            self._interrupted = True
            for process in list(self._running):
                _kill(process)
            raise
        finally:
            pool.shutdown(cancel_futures=True)
        for name, step in steps.items():
            if step.timed:
                self._one(name, step, alone=True)

    def _one(self, name: str, step: Step, *, alone: bool) -> None:
        left_s = self._deadline - time.monotonic()
        late = left_s <= 0 or (not self._first and left_s < step.limit_s / 2)
        if name in self._record.steps or late or self._interrupted:
            return
        say(f"{name}: begins, {left_s:.0f} s left")
        limit_s = min(step.limit_s, left_s)
        # Beside others it takes the device's memory as it needs it.
        shared = {} if alone else {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        entry = run(
            name,
            limit_s,
            tiny=self._tiny,
            variables=self._variables | shared,
            running=self._running,
        )
        if self._interrupted:
            return
        if entry["outcome"] == "missing":
            self.skipped[name] = entry["missing"]
            say(f"{name}: skipped, {entry['missing']} is not installed")
            return
        self._first = False
        if entry["outcome"] == "timed out" and left_s < step.limit_s:
            say(f"{name}: stopped at the end of the session")
            return
        say(f"{name}: {entry['outcome']} after {entry['seconds']} s")
        self._record.add(name, entry)


def totals(steps: dict[str, Step], record: Record, skipped: dict[str, str]) -> dict[str, Any]:
    """The last line: of all steps that were asked for, also those of earlier calls."""
    ended = [record.steps[name] for name in steps if name in record.steps]
    outcomes = collections.Counter(entry["outcome"] for entry in ended)
    return {
        "steps": len(steps),
        **{outcome.replace(" ", "_"): outcomes[outcome] for outcome in FINISHED},
        "skipped": dict(collections.Counter(skipped.values())),
        "left": len(steps) - len(ended) - len(skipped),
        "figures": sum(entry.get("figures", 0) for entry in ended),
        "conformance": {key: sum(e.get(key, 0) for e in ended) for key in ("passed", "failed")},
    }


def main() -> int:
    begin = time.monotonic()
    parser = argparse.ArgumentParser(
        prog="scripts/accelerator",
        description=str(__doc__),
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="a package or PACKAGE.STEP")
    parser.add_argument("--state", type=Path, metavar="FILE", help="what ended, for the next call")
    parser.add_argument("--limit-s", type=float, default=600, help="end then (default: 600)")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes, as always on a CPU")
    parser.add_argument(
        "--together", type=int, metavar="N", default=most_together(),
        help="steps without times that run at once (default: half of the cores, at most 8)",
    )  # fmt: skip
    parser.add_argument("--list", action="store_true", help="print the steps in order, run none")
    args = parser.parse_args()
    if not args.limit_s > CLOSING_S:
        parser.error(f"--limit-s must be above {CLOSING_S:g}, got {args.limit_s:g}; write 600")
    if args.together < 1:
        parser.error(f"--together must be at least 1, got {args.together}; write 8")
    try:
        steps = select(catalog(), args.names)
        if args.list:
            for name, step in steps.items():
                print(f"{name}  (at most {step.limit_s:g} s)")
            return 0
        found = probe()
        tiny = args.tiny or found["platform"] == "cpu"
        record = Record(args.state, {**found, "tiny": tiny})
    except Unusable as error:
        parser.error(str(error))
    say(f"{found['device']}, {'tiny' if tiny else 'full'} shapes, {len(steps)} steps")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    session = Session(record, tiny=tiny, deadline=begin + args.limit_s - CLOSING_S)
    interrupted = False
    try:
        session.run(steps, together=args.together)
    except KeyboardInterrupt:
        interrupted = True
    last = totals(steps, record, session.skipped)
    print(json.dumps({**last, **found, "tiny": tiny}), flush=True)
    wrong = last["failed"] or last["timed_out"]
    return 130 if interrupted else 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
