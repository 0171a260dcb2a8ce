# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What a run's `Jsonl` file says: its curve over restarts, and where its time went.

Imports nothing of this package, so that a program that only reads runs need not import JAX.
"""

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any


def read_jsonl(path: str | Path) -> list[dict[str, Any]]:
    """One dict per step, in order: the lines of the last generation that reached that step, merged.

    A generation that does not begin at step 0 continues from what was saved at its first step. What
    was written of that step before, such as an evaluation, describes the same state and stays,
    where the new generation does not say otherwise.

    A last line without its newline was torn and is left out. Raises ValueError on any other line
    that is not one of `Jsonl`'s.
    """
    data = Path(path).read_bytes()
    steps: dict[int, dict[str, Any]] = {}
    first: dict[int, int] = {}
    for line in parse(data[: data.rfind(b"\n") + 1], Path(path)):
        step = line["step"]
        seen = steps.get(step, line)
        begun = first.setdefault(line["generation"], step)
        same = seen["generation"] == line["generation"] or step == begun > 0
        steps[step] = seen | line if same else line
    return [steps[step] for step in sorted(steps)]


def parse(data: bytes, path: Path) -> list[dict[str, Any]]:
    """The lines in order; ValueError for one that is not one of `Jsonl`'s."""
    lines = []
    for number, text in enumerate(data.splitlines(), start=1):
        try:
            line = json.loads(text)
        except ValueError:
            line = None
        if not isinstance(line, dict) or not {"step", "generation"} <= line.keys():
            raise ValueError(
                f"each line must be a JSON object with step and generation, got "
                f"{path}:{number}: {text[:60]!r}; remove that line or pass another path"
            )
        lines.append(line)
    return lines


@dataclasses.dataclass(frozen=True, kw_only=True)
class Account:
    """Where the wall time of a run went, from its first line to its last, pauses included.

    wall_s: all of it. step_s: steps that are part of the run. Lost: skipped_s to steps whose update
    was not made, repeated_s to steps that a kill undid and a later start made again, idle_s between
    the last line of a start and the first of the next (the process was gone, or was starting), and
    other_s to the rest (compiling, saving, evaluating, waiting for data).
    """

    wall_s: float
    step_s: float
    skipped_s: float
    repeated_s: float
    idle_s: float

    @property
    def other_s(self) -> float:
        """What is none of the others."""
        named = self.step_s + self.skipped_s + self.repeated_s + self.idle_s
        return max(0.0, self.wall_s - named)

    @property
    def goodput(self) -> float:
        """The part of the wall time that the run's own steps took."""
        return self.step_s / self.wall_s if self.wall_s else 0.0


def read_account(path: str | Path) -> Account:
    """The account of a `Jsonl` file. Raises ValueError as `read_jsonl` does, or for no line.

    print(f"{read_account('run/metrics.jsonl').goodput:.0%} of the time made progress")
    """
    data = Path(path).read_bytes()
    lines = parse(data[: data.rfind(b"\n") + 1], Path(path))
    if not lines:
        raise ValueError(f"an account needs a line, got none in {path}; train a step first")
    last = {line["step"]: line["generation"] for line in lines if "loss" in line}
    seconds = {"step": 0.0, "skipped": 0.0, "repeated": 0.0}
    for line in lines:
        undone = "loss" in line and last[line["step"]] != line["generation"]
        kind = "repeated" if undone else "skipped" if line.get("skipped") else "step"
        seconds[kind] += line.get("step_time_s") or 0.0
    pauses = [
        after["time_s"] - before["time_s"]
        for before, after in itertools.pairwise(lines)
        if after["generation"] != before["generation"]
    ]
    return Account(
        wall_s=lines[-1]["time_s"] - lines[0]["time_s"],
        step_s=seconds["step"],
        skipped_s=seconds["skipped"],
        repeated_s=seconds["repeated"],
        idle_s=float(sum(pauses)),
    )
