# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""One session on an accelerator: correctness first, then figures, from all packages.

    scripts/accelerator --state session.json            # call again until nothing is left
    scripts/accelerator --tiny kernels.attention optim  # a package, or one step of it

It needs this checkout and a Python with jax ($PYTHON, or python3), and installs nothing. The steps
are declared in packages/NAME/benchmarks/accelerator.py. Each runs in a process of its own with a
time limit; one that fails does not stop the others. A step that lacks a distribution is skipped,
and the distribution named.

Standard output has one JSON line per figure, printed as its step ends, and a last line of counts;
progress is on standard error. Exit codes: 0 all fine, 1 a step failed or took too long, 2 usage,
130 interrupted.

Steps without times compile much and compute little. They run first, --together at once, and share
the device's memory; all others run alone.

After --limit-s seconds the session ends. A step that is stopped then, or was not begun, runs in the
next call with the same --state. Steps that are done, failed or too slow are not run again: delete a
step's entry in the state file to repeat it. On a CPU all shapes are tiny: a test of the session
itself.
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from accelerator_step import ROOT, Step, catalog, sources

CLOSING_S = 1.0  # for the last line, and for a step's traceback before it is killed
POLL_S = 0.1
PROBE = """
import json, jax
device = jax.devices()[0]
print(json.dumps({"platform": device.platform, "device": device.device_kind}))
"""


def say(text: str) -> None:
    print(f"{text}\n", end="", file=sys.stderr, flush=True)  # whole: threads write, too


class Session:
    """Runs the steps that have not ended in an earlier call.

    Args:
        device: `platform`, `device` and `tiny`.
        file: JSON file of the ended steps, written after each one, whole or not at all; or None.
        deadline: End, by time.monotonic().

    Attributes:
        ended: The `outcome` of each step ("done", "failed" or "timed out"), its seconds, and the
            passed and failed cases of its conformance suites.
        skipped: Steps that were skipped, and the distribution that each lacks.

    Raises:
        ValueError: The file is damaged, or of another device.
    """

    def __init__(self, device: dict[str, Any], *, file: Path | None, deadline: float) -> None:
        self.ended: dict[str, dict[str, Any]] = {}
        self.skipped: dict[str, str] = {}
        self._device, self._file, self._deadline = device, file, deadline
        path = [*sources(), os.environ.get("PYTHONPATH")]
        self._path = {"PYTHONPATH": os.pathsep.join(filter(None, path))}
        if file is not None and file.exists():
            document = json.loads(file.read_text(encoding="utf-8"))
            self.ended = document.pop("steps", {})
            if document != device:
                raise ValueError(f"it is of {document}")
        self._write()

    def _write(self) -> None:
        if self._file is None:
            return
        text = json.dumps({**self._device, "steps": self.ended}, indent=1)
        new = self._file.with_name(self._file.name + ".new")
        new.write_text(text + "\n", encoding="utf-8")
        os.replace(new, self._file)

    def run(self, steps: dict[str, Step], *, together: int) -> None:
        """Runs steps without times, `together` at once, then the others one by one."""
        for timed, count in ((False, together), (True, 1)):
            wanted = [n for n, s in steps.items() if s.timed == timed and n not in self.ended]
            with concurrent.futures.ThreadPoolExecutor(count) as pool:
                jobs = {
                    pool.submit(self._process, name, steps[name].limit_s, alone=count == 1): name
                    for name in wanted
                }
                try:
                    for job in concurrent.futures.as_completed(jobs):
                        self._record(jobs[job], *job.result())
                except BaseException:  # an interrupt, or a disk that is full
                    self._deadline = 0.0  # all running steps are stopped, and no other begins
                    raise

    def _process(self, name: str, limit_s: float, *, alone: bool) -> tuple[str, float, str]:
        """Runs a step in its process.

        Returns:
            The outcome, "" if it must run in the next call; its seconds; its standard output.
        """
        begin = time.monotonic()
        limit = begin + limit_s
        if begin >= self._deadline:
            return "", 0.0, ""
        say(f"{name}: begins, {self._deadline - begin:.0f} s left")
        until = min(limit, self._deadline) - CLOSING_S
        line = [sys.executable, str(ROOT / "scripts" / "accelerator_step.py"), name]
        line += ["--until", f"{until:.3f}", *["--tiny"] * self._device["tiny"]]
        # Beside others it takes the device's memory as it needs it.
        shared = {} if alone else {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        environment = {**os.environ, **self._path, **shared}
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
            process = subprocess.Popen(line, stdout=output, env=environment, start_new_session=True)
            while process.poll() is None and time.monotonic() < min(limit, self._deadline):
                time.sleep(POLL_S)
            end = time.monotonic()
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # what it has started, too
            code = process.wait()
            output.seek(0)
            text = output.read()
        outcome = "failed" if code else "done"
        if code and end >= until:
            outcome = "" if end >= self._deadline - CLOSING_S else "timed out"
        return outcome, end - begin, text

    def _record(self, name: str, outcome: str, seconds: float, output: str) -> None:
        """Prints figures to standard output, all else to standard error; keeps the outcome."""
        entry = {"outcome": outcome, "seconds": round(seconds, 1), "passed": 0, "failed": 0}
        for text in output.splitlines():
            line = None
            with contextlib.suppress(ValueError):
                line = json.loads(text)
            if not isinstance(line, dict):
                say(text)
            elif "missing" in line:
                self.skipped[name] = line["missing"]
            else:
                print(text, flush=True)
                for count in ("passed", "failed"):
                    entry[count] += line.get(count, 0)
        if name in self.skipped:
            say(f"{name}: skipped, {self.skipped[name]} is not installed")
        elif outcome:
            say(f"{name}: {outcome} after {entry['seconds']} s")
            self.ended[name] = entry
            self._write()


def select(steps: dict[str, Step], names: list[str]) -> dict[str, Step]:
    """Returns the steps of the named packages and the named steps; all if none is named."""
    packages = {name.split(".")[0] for name in steps}
    if unknown := set(names) - packages - steps.keys():
        raise ValueError(f"a package or PACKAGE.STEP of --list must be named, got {min(unknown)}")
    wanted = {n: s for n, s in steps.items() if n in names or n.split(".")[0] in names}
    return wanted or steps


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    raw = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(
        "scripts/accelerator", description=__doc__, formatter_class=raw
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="a package or PACKAGE.STEP")
    parser.add_argument("--state", type=Path, metavar="FILE", help="what ended, for the next call")
    parser.add_argument("--limit-s", type=float, default=600, help="end then (default: 600)")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes, as always on a CPU")
    half = min(8, max(1, (os.cpu_count() or 1) // 2))
    text = f"steps without times that run at once (default: half of the cores, here {half})"
    parser.add_argument("--together", type=int, metavar="N", default=half, help=text)
    parser.add_argument("--list", action="store_true", help="print the steps in order, run none")
    return parser


def main() -> int:
    """Runs the session."""
    begin, usage = time.monotonic(), parser()
    args = usage.parse_args()
    try:
        steps = select(catalog(), args.names)
    except ValueError as error:
        usage.error(str(error))
    if args.list:
        for name, step in steps.items():
            print(f"{name}  (at most {step.limit_s:g} s)")
        return 0
    probe = subprocess.run([sys.executable, "-c", PROBE], stdout=subprocess.PIPE, text=True)
    if probe.returncode:
        usage.error(f"{sys.executable} lacks jax, or jax a device. Set PYTHON to another")
    device = json.loads(probe.stdout.splitlines()[-1])
    device["tiny"] = args.tiny or device["platform"] == "cpu"
    deadline = begin + args.limit_s - CLOSING_S
    try:
        session = Session(device, file=args.state, deadline=deadline)
    except (OSError, ValueError) as error:
        usage.error(
            f"--state must name a new file, or one that this command wrote for {device}; got "
            f"{args.state} ({error}). Name another"
        )
    say(f"{device['device']}, {'tiny' if device['tiny'] else 'full'} shapes, {len(steps)} steps")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    interrupted = False
    try:
        session.run(steps, together=args.together)
    except KeyboardInterrupt:
        interrupted = True
    outcomes = [session.ended[name]["outcome"] for name in steps if name in session.ended]
    counts = {kind: outcomes.count(kind) for kind in ("done", "failed", "timed out")}
    left = len(steps) - len(outcomes) - len(session.skipped)
    last = {"steps": len(steps), **counts, "skipped": session.skipped, "left": left}
    print(json.dumps({**last, **device}), flush=True)
    return 130 if interrupted else 1 if counts["failed"] or counts["timed out"] else 0


if __name__ == "__main__":
    sys.exit(main())
