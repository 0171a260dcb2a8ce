# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Readers of a run's `Jsonl` file: its metrics over restarts, and its account of time.

Imports nothing of this package, so a program that only reads runs need not import JAX.
"""

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

_NOT_FINITE = ("nan", "inf", "-inf")


def read_jsonl(path: str | Path) -> list[dict[str, Any]]:
    """Returns one dict per step, in order, merged from the last generation that reached the step.

    A generation that starts after step 0 continues from what was saved at its first step. Earlier
    lines of that step, such as an evaluation, describe the same state and stay, unless the new
    generation has other values. An incomplete last line is left out.

    Raises ValueError for any other line not written by `Jsonl`.
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
    """Returns the lines in order. Raises ValueError for a line not written by `Jsonl`.

    The words "nan", "inf" and "-inf", as dovetail-runs writes such numbers, are None.
    """
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
        lines.append({k: None if v in _NOT_FINITE else v for k, v in line.items()})
    return lines


@dataclasses.dataclass(frozen=True, kw_only=True)
class Straggler:
    """A process that is slower than the others.

    Attributes:
        process: Its index.
        activity: Its slowest activity outside of steps; see `Clock`. Or "devices", in steps.
        own_s: Its seconds of that in the launch.
        others_s: The median of the others. Of "devices", the seconds that theirs would need.
    """

    process: int
    activity: str
    own_s: float
    others_s: float

    def __str__(self) -> str:
        return (
            f"process {self.process}: {self.own_s:,.1f} s of {self.activity}, "
            f"the others {self.others_s:,.1f} s"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Account:
    """Wall time of a run, from its first line to its last, pauses included.

    Attributes:
        wall_s: All of it.
        step_s: Steps that are part of the run.
        skipped_s: Lost to steps without an update.
        repeated_s: Lost to steps undone by a kill and repeated later.
        stalled_s: Between steps, while the devices had no work.
        idle_s: Between the last line of a launch and the first of the next.
        straggler: The process that the others waited for at last, None if none stood out.
    """

    wall_s: float
    step_s: float
    skipped_s: float
    repeated_s: float
    stalled_s: float
    idle_s: float
    straggler: Straggler | None = None

    @property
    def other_s(self) -> float:
        """The rest: compiling, saving, evaluating."""
        named = self.step_s + self.skipped_s + self.repeated_s + self.stalled_s + self.idle_s
        return max(0.0, self.wall_s - named)

    @property
    def goodput(self) -> float:
        """Share of the run's own steps in the wall time."""
        return self.step_s / self.wall_s if self.wall_s else 0.0


def read_account(path: str | Path) -> Account:
    """Returns the account of a `Jsonl` file. Raises ValueError as `read_jsonl`, and without
    lines.
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
        stalled_s=float(sum(line.get("stall_s") or 0.0 for line in lines)),
        idle_s=float(sum(pauses)),
        straggler=_straggler(lines),
    )


def _straggler(lines: list[dict[str, Any]]) -> Straggler | None:
    """Returns that of the last line with an account."""
    line = next((line for line in reversed(lines) if "seconds/step" in line), {})
    if "straggler" not in line:
        return None
    names = (name.removeprefix("straggler/") for name in line if name.startswith("straggler/"))
    activity = next(name for name in names if name != "others")
    return Straggler(
        process=int(line["straggler"]),
        activity=activity,
        own_s=line[f"straggler/{activity}"],
        others_s=line["straggler/others"],
    )
