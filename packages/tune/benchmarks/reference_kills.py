# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Counts the kills that DPO over `with_reference` survives.

Runs `tests/programs/reference_kills.py`, which compares the losses after each run of kills bit for
bit with those of a run without, and fails if a batch is computed again that was not in flight. A
kill costs about 2 CPU seconds.

    python benchmarks/reference_kills.py --kills 300
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import report

PROGRAM = Path(__file__).resolve().parent.parent / "tests" / "programs" / "reference_kills.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=300, help="number of SIGKILLs")
    parser.add_argument("--seed", type=int, default=0, help="seed of their places")
    options = parser.parse_args()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, PROGRAM, Path(folder) / "runs", options.kills, options.seed]
        done = subprocess.run(
            list(map(str, command)),
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"the program must end with 0, got {done.returncode}:\n{done.stderr}")
    counts = dict(line.rsplit(": ", 1) for line in done.stdout.splitlines())
    report(
        "SIGKILL in DPO over with_reference",
        metric="runs with the losses of a whole run",
        unit="of the runs",
        values=[1.0],  # the program fails otherwise
        kills=int(counts["kills"]),
        runs=int(counts["runs"]),
        batches_computed_again=int(counts["batches in flight"]),
        seed=options.seed,
        seconds=round(time.perf_counter() - start, 1),
    )


if __name__ == "__main__":
    main()
