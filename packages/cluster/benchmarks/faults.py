# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Counts the faults that a training function survives, bit for bit, on real processes.

`dovetail_cluster.testing.survives` kills ranks and daemons, stops and stalls ranks, raises in them,
sends notices and takes hosts away, at seeded steps. It fails if a value differs from that of the
unbroken run, or a process is left. A fault costs 2 to 8 seconds.

    python benchmarks/faults.py --faults 100
"""

import argparse
import json
import os
import pathlib
import statistics
import time
from collections import Counter

from dovetail_cluster import Context
from dovetail_cluster.testing import survives
from measure import report


def train(ctx: Context, steps: int) -> float:
    """Sums random numbers over all ranks and steps, with a checkpoint after each step."""
    import jax
    from jax.experimental import multihost_utils

    saved = pathlib.Path("saved")
    step, total = json.loads(saved.read_text()) if saved.exists() else (0, 0.0)
    while step < steps:
        own = jax.random.normal(jax.random.key(step + 100_000 * ctx.rank), (3,))
        total += float(multihost_utils.process_allgather(own).sum())
        step += 1
        if ctx.rank == 0:
            pathlib.Path("new").write_text(json.dumps([step, total]))
            os.replace("new", saved)
        ctx.progress.write(step, {})
        if ctx.stop(step):
            break
    return total


def main() -> None:
    """Runs the campaign and prints one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=100, help="number of faults")
    parser.add_argument("--hosts", type=int, default=3, help="number of local hosts")
    parser.add_argument("--seed", type=int, default=0, help="seed of their kinds and places")
    options = parser.parse_args()
    start = time.perf_counter()
    found = survives(
        train, 4 * options.faults, hosts=options.hosts, faults=options.faults, seed=options.seed
    )
    by_kind = Counter(struck.fault.kind for struck in found.struck)
    report(
        "a training function under faults",
        metric="from a fault to the next step",
        unit="s",
        values=[struck.recovery_s for struck in found.struck],
        medians={
            kind: round(
                statistics.median(s.recovery_s for s in found.struck if s.fault.kind == kind), 2
            )
            for kind in sorted(by_kind)
        },
        faults=dict(sorted(by_kind.items())),
        hosts=options.hosts,
        generations=found.broken.generations,
        seed=options.seed,
        seconds=round(time.perf_counter() - start, 1),
    )


if __name__ == "__main__":
    main()
