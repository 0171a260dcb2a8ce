# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Kills a process above 0 at random moments: survivors.py DIR KILLS SEED [PROCESSES].

A run is killed, resumed and killed again, until it reaches its end; then another is. Writes, as
JSON, the losses of each, those of an uninterrupted run, and of each kill: the number of steps
before it, the exit codes, the seconds until every survivor had ended, and the last error of
process 0.
"""

import json
import random
import sys
import time
from pathlib import Path

import several

STEPS, SAVE_EVERY = 60, 4


def launch(directory, count, log):
    def work(me, count):
        several.fit(directory, me, count, steps=STEPS, save_every=SAVE_EVERY)

    return several.Launch(work, count=count, log=directory / log)


def killed(directory, count, *, rng, log):
    """Launches the run, kills a process at a random moment, and tells how the others end.

    A quarter of the moments is in the start and the compilation, the others are after a random
    number of steps: in a step, a save or an evaluation.
    """
    victim, name = rng.randrange(1, count), directory / "metrics.jsonl"
    before = len(several.losses(directory)) if name.exists() else 0
    wanted = 0 if rng.random() < 0.25 else rng.randint(1, STEPS // 3)
    running = launch(directory, count, log)
    path = directory / f"steps_{count}_{victim}"
    begun = len(path.read_text()) if path.exists() else 0
    while wanted and running.is_running(victim):
        made = path.read_text()[begun:].count("\n") if path.exists() else 0
        if made >= min(wanted, STEPS - before):
            break
        time.sleep(0.005)
    time.sleep(rng.uniform(0, 0.3 if wanted else 3))
    start = time.monotonic()
    running.kill(victim)
    codes = running.wait()
    survived_s = time.monotonic() - start
    lines = [line for line in running.output(0).splitlines() if "got a lost process" in line]
    steps = directory / "metrics.jsonl"
    return {
        "steps": len(several.losses(directory)) if steps.exists() else 0,
        "victim": codes.pop(victim),
        "survivors": codes,
        "survived_s": survived_s,
        "said": lines[-1] if lines else "",
    }


def main():
    root, kills, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    count = int(sys.argv[4]) if len(sys.argv) > 4 else 2
    rng = random.Random(seed)
    several.train(root / "whole", count, steps=STEPS, save_every=SAVE_EVERY)
    whole = several.losses(root / "whole")
    trials, finished = [], []
    while len(trials) < kills:
        directory = root / f"killed_{len(finished)}"
        directory.mkdir()
        made = []
        # A run that has reached its end is finished, and another is begun.
        while len(trials) < kills and (not made or made[-1]["steps"] < STEPS):
            log = f"log_{len(trials)}"
            made.append(killed(directory, count, rng=rng, log=log))
            trials.append(made[-1])
        several.train(directory, count, steps=STEPS, save_every=SAVE_EVERY)
        finished.append(several.losses(directory))
    json.dump({"whole": whole, "killed": finished, "trials": trials}, sys.stdout)


main()
