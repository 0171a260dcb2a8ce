# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Counts what runs survive: kills, deletions that fail, readers and second writers.

The trials are the programs of the test suite, `tests/programs`, with more repetitions and other
seeds. Each program checks the contents after every trial, and ends with an error if a step that was
durable is lost or differs.

`--table FILE` writes the page of the documentation; `--part 0.05` makes fewer trials.
"""

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from measure import report

PROGRAMS = Path(__file__).resolve().parent.parent / "tests" / "programs"
KILLS = 50  # in one run of the program


@dataclass(frozen=True, kw_only=True)
class Result:
    """The trials of one kind.

    Attributes:
        case: Name of the kind.
        trials: Number of trials.
        silent: Trials in which something wrong passed as right.
        unrestorable: Trials after which a durable step was lost.
        details: Counts of the program, by name.
    """

    case: str
    trials: int
    silent: int
    unrestorable: int
    details: dict[str, int]


def counts(name: str, *args: object) -> Counter[str]:
    """Runs a program in a new directory and returns the counts that it prints."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, PROGRAMS / name, Path(folder) / "run", *map(str, args)]
        environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name} must end with 0, got {done.returncode}:\n{done.stderr[-3000:]}")
    found: Counter[str] = Counter()
    for line in done.stdout.splitlines():
        if ": " in line:
            case, count = line.rsplit(": ", 1)
            found[case] += int(count)
        else:  # "50 kills survived, 0 durable steps lost"
            words = line.split()
            found["kills survived"] += int(words[0])
            found["durable steps lost"] += int(words[3])
    return found


def kills(trials: int) -> Result:
    """SIGKILL: a fifth at any moment, the others at random points of each phase of a save."""
    found: Counter[str] = Counter()
    for seed in range(max(1, trials // KILLS)):
        found += counts("kill.py", min(KILLS, trials), seed)
    return Result(
        case="SIGKILL while saving",
        trials=found.pop("kills survived"),
        silent=0,  # the program compares every restored step with the one that was saved
        unrestorable=found.pop("durable steps lost", 0),
        details=dict(found),
    )


def deletions(trials: int) -> Result:
    """Old steps that cannot be deleted: the run goes on, and the next save deletes them."""
    found = counts("undeleted.py", trials, 1)
    wrong = found.pop("wrong", 0)
    return Result(
        case="an old step that cannot be deleted",
        trials=found.total(),
        silent=0,
        unrestorable=wrong,
        details=dict(found),
    )


def readers(trials: int) -> Result:
    """Reads of a run that saves meanwhile and keeps one step."""
    found = counts("beside.py", trials)
    return Result(
        case="a reader beside a writer that keeps one step",
        trials=found["whole"] + found["wrong"],
        silent=found["wrong"],
        unrestorable=found["called damaged"],
        details={"listed again": found["listed again"]},
    )


def writers(trials: int) -> Result:
    """Two processes that save the same step of one root at once."""
    found = counts("two_writers.py", trials, 1)
    good = {name: count for name, count in found.items() if name.startswith("taken over")}
    return Result(
        case="two writers of one root",
        trials=found.total(),
        silent=found.total() - sum(good.values()),
        unrestorable=0,  # the second restores the first one's step before it saves
        details=good,
    )


CAMPAIGN: dict[Callable[[int], Result], int] = {
    kills: 1000,
    deletions: 700,
    readers: 500,
    writers: 200,
}

_HEAD = """# What runs survive

Written by `packages/checkpoint/benchmarks/survival.py`. Silent counts trials in which something
wrong passed as right, unrestorable those after which a durable step was lost, or called damaged. A
fifth of the kills falls at any moment, the others at random points inside the phase of their name.
Deletion fails as it does on busy NFS files and without permission, by the same errors of the
system; no trial may raise, and the next save deletes what was left. Of two writers, the second must
be refused, and after the end of the first it restores the first one's step and saves the next.

| fault | trials | silent | unrestorable | of these |
|---|---|---|---|---|
"""


def page(results: list[Result]) -> str:
    """The page of the documentation."""
    rows = []
    for result in results:
        details = "; ".join(f"{name} {count}" for name, count in result.details.items())
        cells = [result.case, result.trials, result.silent, result.unrestorable, details]
        rows.append("| " + " | ".join(map(str, cells)) + " |\n")
    made = f"\nPython {platform.python_version()}, {time.strftime('%Y-%m-%d')}.\n"
    return _HEAD + "".join(rows) + made


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", type=float, default=1.0)
    parser.add_argument("--table", type=Path)
    args = parser.parse_args()
    results = []
    for campaign, trials in CAMPAIGN.items():
        result = campaign(max(10, round(trials * args.part)))
        results.append(result)
        sound = result.trials - result.silent - result.unrestorable
        report(
            result.case,
            metric="survived",
            unit="of the trials",
            values=[sound / result.trials],
            trials=result.trials,
            silent=result.silent,
            unrestorable=result.unrestorable,
            **{name.replace(" ", "_"): count for name, count in result.details.items()},
        )
    if args.table:
        args.table.write_text(page(results), encoding="utf-8")
    else:
        print(page(results), file=sys.stderr)


if __name__ == "__main__":
    main()
