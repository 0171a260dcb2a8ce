# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""CPU seconds and peak memory of reading a file of metrics, lines of 6 scalars each.

Against dovetail_train.read_jsonl, which gives a dict for each step, and against json.loads of each
line, of which only the loss is kept: the floor of any reader of this format. Each reading is a
process of its own; its memory is the peak less the memory after the imports. All readers must give
the same sum of losses.

`--once N` reads N lines by read_metrics alone, once.
"""

import argparse
import json
import math
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import report, rounds

SIZES = (10**5, 10**6)
REPEATS = 3
PEERS = {"read_jsonl": "dovetail-train", "json.loads": "json.loads of each line"}


def generate(path: Path, count: int) -> None:
    """Writes a line for each step, with floats of all their digits as trainers log them."""
    rng = random.Random(0)
    with path.open("w") as file:
        for step in range(count):
            x = rng.random()
            head = f'{{"step": {step}, "generation": 0, "time_s": {1.7e9 + step * x}'
            file.write(
                f'{head}, "loss": {2 + x}, "grad_norm": {x / 3}, "learning_rate": {x * 1e-3}, '
                f'"skipped": 0.0, "step_time_s": {x / 7}, "tokens_per_s": {1e5 * x}}}\n'
            )


def run(reader: str, path: Path) -> None:
    """Reads the file in this process, and prints the cost as JSON."""
    if reader == "read_jsonl":  # with JAX, whose import takes longer than a short file
        from dovetail_train import read_jsonl as read
    else:
        from dovetail_runs import read_metrics as read

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.process_time()
    if reader == "read_metrics":
        metrics = read(path)
        spent = time.process_time() - begun
        losses = metrics.curve("loss").values
    elif reader == "read_jsonl":
        lines = read(path)
        spent = time.process_time() - begun
        losses = [line["loss"] for line in lines]
    else:
        losses = []
        with path.open("rb") as file:
            for line in file:
                losses.append(json.loads(line)["loss"])
        spent = time.process_time() - begun
    peak = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    print(json.dumps({"cpu_s": spent, "peak_bytes": peak, "loss": math.fsum(losses)}))


def measured(reader: str, path: Path) -> dict[str, float]:
    program = [sys.executable, __file__, "--run", reader, str(path)]
    return json.loads(subprocess.check_output(program))


def compare(path: Path, count: int) -> None:
    """Reports all readers of one file."""
    readers = ("read_metrics", *PEERS)
    costs = rounds({r: (lambda r=r: measured(r, path)) for r in readers}, repeats=REPEATS)
    assert len({cost["loss"] for own in costs.values() for cost in own}) == 1
    for reader, peer in PEERS.items():
        for metric, unit in (("cpu_s", "s"), ("peak_bytes", "bytes")):
            if (reader, metric) == ("json.loads", "peak_bytes"):
                continue  # it keeps one number of each line
            report(
                f"{count:,} lines of 6 scalars",
                metric=metric,
                unit=unit,
                values=[cost[metric] for cost in costs["read_metrics"]],
                peer=peer,
                peer_values=[cost[metric] for cost in costs[reader]],
                file_bytes=path.stat().st_size,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--once", type=int)
    parser.add_argument("--run", nargs=2)
    args = parser.parse_args()
    if args.run:
        run(args.run[0], Path(args.run[1]))
        return
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "metrics.jsonl"
        for count in [args.once] if args.once else SIZES:
            generate(path, count)
            if not args.once:
                compare(path, count)
                continue
            cost = measured("read_metrics", path)
            for metric, unit in (("cpu_s", "s"), ("peak_bytes", "bytes")):
                size = path.stat().st_size
                case = f"{count:,} lines of 6 scalars"
                report(case, metric=metric, unit=unit, values=[cost[metric]], file_bytes=size)


if __name__ == "__main__":
    main()
