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
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from accelerator_step import MISSING, ROOT, Step, catalog, sources

CLOSING_S = 1.0  # for the last line, and for a step's traceback before it is killed
OUTCOMES = {0: "done", MISSING: "missing"}  # by exit code; any other is "failed" or "timed out"
PROBE = """
import json, jax
device = jax.devices()[0]
print(json.dumps({"platform": device.platform, "device": device.device_kind}))
"""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def select(steps: dict[str, Step], names: list[str]) -> dict[str, Step]:
    """Returns the steps of the named packages and the named steps; all if none is named."""
    packages = {name.split(".")[0] for name in steps}
    if unknown := set(names) - packages - steps.keys():
        raise ValueError(f"a package or PACKAGE.STEP of --list must be named, got {min(unknown)}")
    wanted = {n: s for n, s in steps.items() if n in names or n.split(".")[0] in names}
    return wanted or steps


class State:
    """Ended steps, kept in a file if one is given.

    Args:
        file: JSON; written after each step, whole or not at all.
        conditions: `platform`, `device` and `tiny`; a file of other ones is refused.

    Attributes:
        steps: `outcome` ("done", "failed" or "timed out"), seconds and counts of each step.
    """

    def __init__(self, file: Path | None, conditions: dict[str, Any]) -> None:
        self._file, self._conditions = file, conditions
        self.steps: dict[str, dict[str, Any]] = {}
        if file is not None and file.exists():
            document = json.loads(file.read_text(encoding="utf-8"))
            self.steps = document.pop("steps")
            if document != conditions:
                raise ValueError(f"it is of {document}")
        self.write()

    def write(self) -> None:
        """Writes the file anew."""
        if self._file is None:
            return
        text = json.dumps({**self._conditions, "steps": self.steps}, indent=1)
        new = self._file.with_name(self._file.name + ".new")
        new.write_text(text + "\n", encoding="utf-8")
        os.replace(new, self._file)


class Session:
    """Runs the steps that a state lacks.

    Args:
        state: Ended steps of earlier calls; those of this session are added.
        tiny: Tiny shapes.
        deadline: End, by time.monotonic().

    Attributes:
        skipped: Steps that were skipped, and the distribution that each lacks.
    """

    def __init__(self, state: State, *, tiny: bool, deadline: float) -> None:
        self.skipped: dict[str, str] = {}
        self._state, self._tiny, self._deadline = state, tiny, deadline
        self._first = True
        path = [*sources(), os.environ.get("PYTHONPATH", "")]
        self._path = {"PYTHONPATH": os.pathsep.join(filter(None, path))}
        self._running: set[subprocess.Popen[str]] = set()
        self._interrupted = False

    def run(self, steps: dict[str, Step], *, together: int) -> None:
        """Runs steps without times, `together` at once, then the others one by one."""
        for timed, count in ((False, together), (True, 1)):
            wanted = [(name, step) for name, step in steps.items() if step.timed == timed]
            pool = concurrent.futures.ThreadPoolExecutor(count)
            try:
                jobs = [pool.submit(self._one, *item, alone=count == 1) for item in wanted]
                for job in jobs:
                    job.result()
            except KeyboardInterrupt:
                self._interrupted = True
                for process in list(self._running):
                    _kill(process)
                raise
            finally:
                pool.shutdown(cancel_futures=True)

    def _one(self, name: str, step: Step, *, alone: bool) -> None:
        left_s = self._deadline - time.monotonic()
        late = left_s <= 0 or (not self._first and left_s < step.limit_s / 2)
        if name in self._state.steps or late or self._interrupted:
            return
        say(f"{name}: begins, {left_s:.0f} s left")
        entry = self._process(name, min(step.limit_s, left_s), alone=alone)
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
        self._state.steps[name] = entry
        try:
            self._state.write()
        except OSError as error:  # a full disk loses the entry, not the session
            say(f"{name} will run again: {error}")

    def _process(self, name: str, limit_s: float, *, alone: bool) -> dict[str, Any]:
        """One step in its process: `outcome` ("done", "failed", "timed out" or "missing")."""
        entry: dict[str, Any] = {"figures": 0, "passed": 0, "failed": 0}
        own_s = max(limit_s - CLOSING_S, limit_s / 2)
        # Beside others it takes the device's memory as it needs it.
        shared = {} if alone else {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        begin = time.monotonic()
        line = [sys.executable, str(ROOT / "scripts" / "accelerator_step.py"), name]
        with subprocess.Popen(
            [*line, "--until", f"{begin + own_s:.3f}", *["--tiny"] * self._tiny],
            stdout=subprocess.PIPE,
            env={**os.environ, **self._path, **shared},
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        ) as process:
            self._running.add(process)
            timer = threading.Timer(limit_s, _kill, [process])
            timer.start()
            try:
                assert process.stdout is not None
                for text in process.stdout:
                    _pass_on(text, entry)
                process.wait()
            finally:
                timer.cancel()
                _kill(process)  # and what it has started
                self._running.discard(process)
        elapsed_s = time.monotonic() - begin
        slow = process.returncode != 0 and elapsed_s >= own_s
        entry["outcome"] = "timed out" if slow else OUTCOMES.get(process.returncode, "failed")
        entry["seconds"] = round(elapsed_s, 1)
        return entry


def _kill(process: subprocess.Popen[str]) -> None:
    """The step, and what it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _pass_on(text: str, entry: dict[str, Any]) -> None:
    """A figure to standard output, anything else that a step prints to standard error."""
    line = None
    with contextlib.suppress(ValueError):
        line = json.loads(text)
    if not isinstance(line, dict):
        print(text, end="", file=sys.stderr, flush=True)
    elif "missing" in line:
        entry["missing"] = line["missing"]
    else:
        print(text, end="", flush=True)
        entry["figures"] += 1
        for count in ("passed", "failed"):
            entry[count] += line.get(count, 0)


def totals(steps: dict[str, Step], state: State, skipped: dict[str, str]) -> dict[str, Any]:
    """The last line: of all steps that were asked for, also those of earlier calls."""
    ended = [state.steps[name] for name in steps if name in state.steps]
    outcomes = collections.Counter(entry["outcome"] for entry in ended)
    return {
        "steps": len(steps),
        "done": outcomes["done"],
        "failed": outcomes["failed"],
        "timed_out": outcomes["timed out"],
        "skipped": dict(collections.Counter(skipped.values())),
        "left": len(steps) - len(ended) - len(skipped),
        "figures": sum(entry["figures"] for entry in ended),
        "conformance": {key: sum(e[key] for e in ended) for key in ("passed", "failed")},
    }


def parse() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/accelerator",
        description=str(__doc__),
        formatter_class=argparse.RawTextHelpFormatter,
    )
    together = min(8, max(1, (os.cpu_count() or 1) // 2))
    parser.add_argument("names", nargs="*", metavar="NAME", help="a package or PACKAGE.STEP")
    parser.add_argument("--state", type=Path, metavar="FILE", help="what ended, for the next call")
    parser.add_argument("--limit-s", type=float, default=600, help="end then (default: 600)")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes, as always on a CPU")
    help_together = "steps without times that run at once (default: half of the cores, at most 8)"
    parser.add_argument("--together", type=int, metavar="N", default=together, help=help_together)
    parser.add_argument("--list", action="store_true", help="print the steps in order, run none")
    args = parser.parse_args()
    try:
        args.steps = select(catalog(), args.names)
    except ValueError as error:
        parser.error(str(error))
    if args.list:
        return args
    probe = subprocess.run([sys.executable, "-c", PROBE], stdout=subprocess.PIPE, text=True)
    if probe.returncode:
        parser.error(f"{sys.executable} lacks jax, or jax a device. Set PYTHON to another")
    args.device = json.loads(probe.stdout.splitlines()[-1])
    args.device["tiny"] = args.tiny or args.device["platform"] == "cpu"
    try:
        args.record = State(args.state, args.device)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        parser.error(
            f"--state must name a new file, or one that this command wrote for {args.device}; got "
            f"{args.state} ({error!r}). Name another"
        )
    return args


def main() -> int:
    """Runs the session."""
    begin, args = time.monotonic(), parse()
    if args.list:
        for name, step in args.steps.items():
            print(f"{name}  (at most {step.limit_s:g} s)")
        return 0
    tiny = args.device["tiny"]
    shapes = "tiny" if tiny else "full"
    say(f"{args.device['device']}, {shapes} shapes, {len(args.steps)} steps")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    session = Session(args.record, tiny=tiny, deadline=begin + args.limit_s - CLOSING_S)
    interrupted = False
    try:
        session.run(args.steps, together=args.together)
    except KeyboardInterrupt:
        interrupted = True
    last = totals(args.steps, args.record, session.skipped)
    print(json.dumps({**last, **args.device}), flush=True)
    return 130 if interrupted else 1 if last["failed"] or last["timed_out"] else 0


if __name__ == "__main__":
    sys.exit(main())
