# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""One run on one process, and another on two, then one, then four: resized.py DIR.

Writes, as JSON, the losses of both by step, and what the second wrote.
"""

import json
import sys
import time
from pathlib import Path

from several import losses, train

STEPS = ((2, 3), (1, 5), (4, 8))  # processes, and the step that they train to


def saved_seconds(checkpoints, step):
    """The sum of the account that the checkpoint of `step` holds."""
    hooks = json.loads((checkpoints / str(step) / "hooks" / "metadata").read_text())
    return sum(hooks["state"]["clock"].values())


def main():
    whole, moved = Path(sys.argv[1]) / "whole", Path(sys.argv[1]) / "moved"
    train(whole, 1, steps=STEPS[-1][1])
    launch_s, saved = [], []
    for count, steps in STEPS:
        start = time.monotonic()
        train(moved, count, steps=steps)
        launch_s.append(time.monotonic() - start)
        saved.append(saved_seconds(moved / "checkpoints", steps))
    lines = [json.loads(line) for line in (moved / "metrics.jsonl").read_text().splitlines()]
    counted = [json.loads((moved / f"seconds_{n}_{steps}").read_text()) for n, steps in STEPS]
    json.dump(
        {
            "whole": losses(whole),
            "moved": losses(moved),
            "logged": [line["step"] for line in lines if "loss" in line],
            "evaluated": [line["step"] for line in lines if "eval/loss" in line],
            "everywhere": (moved / "steps_4_3").read_text().split(),
            "seconds": [sum(seconds.values()) for seconds in counted],
            "saved": saved,
            "launch_s": launch_s,
        },
        sys.stdout,
    )


main()
