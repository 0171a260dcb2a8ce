# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Kills a process that launches a run and writes metrics as fast as it can, at random moments.

After each kill the run must read without damage, and its state must be "killed". Its steps must be
0, 1, ... without a hole, with every line that the process wrote. At most the last line of a file
may be incomplete. The next launch must go on in the next generation. Every tenth kill begins a new
run, so that kills also meet the first launch.

A kill that leaves anything else ends the program with an error.
"""

import argparse
import mmap
import random
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from dovetail_runs import Run
from measure import report

# Half of the kills count from the import on, for the launch; half from the first line on. The first
# span is long enough for a launch on a busy machine, the second short, so that files stay small.
SPANS_S = {b"imported\n": 0.25, b"writing\n": 0.02}
PER_RUN = 10


def write(path: Path, counter: Path) -> None:
    """Goes on with the run until it is killed. `counter` tells how many steps the file has."""
    run = Run(path)
    step = len(run.metrics.curve("loss"))
    with counter.open("r+b") as file:
        shared = mmap.mmap(file.fileno(), 8)
    print("imported", flush=True)
    with run.launch({"rate": 0.1}, command=["kills.py"]) as launch:
        told = False
        while True:
            scalars = {"loss": 1 / (step + 1), "nan": float("nan"), "step": float(step)}
            launch.write(step, {f"a/{name}": x for name, x in scalars.items()} | {"loss": 0.5})
            step += 1
            struct.pack_into("q", shared, 0, step)
            if not told:
                print("writing", flush=True)
                told = True


def killed(path: Path, counter: Path, rng: random.Random) -> None:
    """Lets a process go on with the run, and kills it at a random moment."""
    word, span_s = rng.choice(list(SPANS_S.items()))
    moment_s = rng.uniform(0, span_s)
    program = [sys.executable, __file__, "--write", str(path), str(counter)]
    with subprocess.Popen(program, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert word in iter(process.stdout.readline, b"")
        time.sleep(moment_s)
        assert process.poll() is None, "the process ended by itself"
        process.kill()


def checked(path: Path, steps: int, generations: int) -> tuple[str, int]:
    """Returns where the kill met the process, and the number of generations; raises if it shows.

    Args:
        path: The run.
        steps: Steps whose `write` has returned.
        generations: Those before this launch.
    """
    run = Run(path)
    assert run.damage == [], run.damage
    assert run.state == ("killed" if run.launches else "new"), run.state
    assert all(event["event"] == "start" for event in run.events)
    if run.launches:
        assert run.settings == {"rate": 0.1}
    curve, lines = run.metrics.curve("loss"), run.metrics.lines
    assert curve.steps.tolist() == list(range(len(curve)))
    assert steps <= len(curve) <= steps + 1, (steps, len(curve))  # one more was under way
    assert len(lines.steps) == len(curve), "a step was written twice"
    numbers = list(dict.fromkeys(lines.generations.tolist()))
    assert numbers == list(range(len(numbers)))
    torn = {
        file.name for file in path.glob("*.jsonl") if file.read_bytes()[-1:] not in (b"", b"\n")
    }
    assert len(numbers) - generations in (0, 1)
    if torn:
        return f"torn {min(torn)}", len(numbers)
    return "writing" if len(numbers) > generations else "launching", len(numbers)


def campaign(kills: int, seed: int) -> None:
    rng = random.Random(seed)
    counts, steps, generations = Counter[str](), 0, 0
    with tempfile.TemporaryDirectory() as name:
        counter = Path(name) / "counter"
        for i in range(kills):
            path = Path(name) / f"run-{i // PER_RUN}"
            if i % PER_RUN == 0:
                counter.write_bytes(bytes(8))
                generations = 0
            killed(path, counter, rng)
            done = struct.unpack("q", counter.read_bytes())[0]
            place, generations = checked(path, done, generations)
            counts[place] += 1
            if i % PER_RUN == PER_RUN - 1 or i == kills - 1:
                steps += done
        with Run(path).launch() as launch:  # the lock is free
            launch.write(done + 1, {"loss": 0.5})
        assert Run(path).state == "finished"
    report(
        f"{kills} kills of a process that writes metrics",
        metric="readable, without a hole",
        unit="of the kills",
        values=[1.0],
        kills=kills,
        seed=seed,
        while_launching=counts["launching"],
        while_writing=kills - counts["launching"],
        incomplete_last_line=sum(n for place, n in counts.items() if place[:4] == "torn"),
        steps=steps,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", nargs=2, type=Path)
    args = parser.parse_args()
    if args.write:
        write(*args.write)
    else:
        campaign(args.kills, args.seed)


if __name__ == "__main__":
    main()
