# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Counts what runs of several processes survive: kills of a process above 0 at random moments.

The trials are the program of the test suite, `tests/programs/survivors.py`, with other seeds. A
trial is sound if every survivor ends with code 1, by an exception or by the watch, and the resumed
run has the losses of an uninterrupted one, bit for bit. Seconds are from the kill to the end of the
last survivor.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from measure import report

PROGRAM = Path(__file__).resolve().parent.parent / "tests" / "programs" / "survivors.py"
KILLS, RUNS = 10, 5


def trials(seed: int, *, kills: int, processes: int) -> tuple[list[dict], bool]:
    """Runs the program. Returns its trials, and whether the losses are those without a kill."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(PROGRAM), folder, str(kills), str(seed), str(processes)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"survivors.py must end with 0, got {done.returncode}: {done.stderr}")
    result = json.loads(done.stdout)
    return result["trials"], all(losses == result["whole"] for losses in result["killed"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    for seed in range(args.seed, args.seed + args.runs):
        made, equal = trials(seed, kills=args.kills, processes=args.processes)
        killed = [t for t in made if t["victim"] == -9 and 0 not in t["survivors"]]
        raised = [t for t in killed if set(t["survivors"]) == {1}]
        seconds = [t["survived_s"] for t in killed]
        report(
            f"{args.processes} processes, one above 0 killed, seed {seed}",
            metric="survived",
            unit="of the trials",
            values=[len(raised) / max(1, len(killed)) if equal else 0.0],
            trials=len(killed),
            ended_before=len(made) - len(killed),  # the last step was made, and saved
            raised=len(raised),
            losses_equal=equal,
            median_s=round(statistics.median(seconds), 2) if seconds else None,
            worst_s=round(max(seconds, default=0.0), 2),
            over_30_s=sum(second > 30 for second in seconds),
            steps_before=[t["steps"] for t in made],
            survivors=[t["survivors"] for t in killed],
        )


if __name__ == "__main__":
    main()
