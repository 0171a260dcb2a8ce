# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Plain Python for what the package computes with arrays, and random files of metrics."""

import itertools
import json
import math
from typing import Any

from hypothesis import strategies as st

Line = dict[str, Any]
NAMES = ("loss", "eval/loss", "skipped", "step_time_s", "stall_s")
# Sums of a few hundred of these are exact, so no test needs a tolerance.
VALUES = st.one_of(st.integers(0, 64).map(lambda n: n / 4), st.sampled_from([None, "nan", "inf"]))
SCALARS = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4)


@st.composite
def files(draw: st.DrawFn) -> list[Line]:
    """Lines of several launches. Each begins at 0, or at a step that was reached, and goes on.

    Steps are skipped, and written several times. At the first step of a launch the one before has
    often left an evaluation.
    """
    lines: list[Line] = []
    time_s = 1_700_000_000.0
    for generation in range(draw(st.integers(1, 4))):
        step = draw(st.integers(0, max((line["step"] for line in lines), default=0)))
        for _ in range(draw(st.integers(1, 8))):
            time_s += draw(st.integers(-4, 20)) / 4
            head = {"step": step, "generation": generation, "time_s": time_s}
            lines.append(head | draw(SCALARS))
            step += draw(st.integers(0, 2))
    return lines


@st.composite
def any_order(draw: st.DrawFn) -> list[Line]:
    """Lines whose steps and generations rise and fall, as no writer leaves them."""
    heads = draw(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=24))
    return [{"step": s, "generation": g, "time_s": 0.0} | draw(SCALARS) for s, g in heads]


def text_of(lines: list[Line]) -> str:
    """Returns the file."""
    return "".join(json.dumps(line) + "\n" for line in lines)


def merged(lines: list[Line]) -> list[Line]:
    """Returns one dict a step. A later launch replaces it, unless it goes on from this step."""
    steps: dict[int, Line] = {}
    begins: dict[int, int] = {}
    for line in lines:
        step, generation = line["step"], line["generation"]
        begins.setdefault(generation, step)
        if step not in steps:
            steps[step] = dict(line)
            continue
        goes_on = step > 0 and begins[generation] == step
        if goes_on or steps[step]["generation"] == generation:
            steps[step].update(line)
        else:
            steps[step] = dict(line)
    return [steps[step] for step in sorted(steps)]


def number(value: Any) -> float:
    """Returns the number that a line holds: NaN for null."""
    return math.nan if value is None else float(value)


def finite(value: Any) -> float:
    """Returns the number that a line holds, 0 for one that is not finite or missing."""
    return number(value) if math.isfinite(number(value)) else 0.0


def account(lines: list[Line]) -> dict[str, float]:
    """Returns the seconds of `Account`, from its docstring, line by line."""
    seconds = dict.fromkeys(("wall", "step", "skipped", "repeated", "stalled", "idle", "back"), 0.0)
    timed = any(not math.isnan(number(line.get("step_time_s"))) for line in lines)
    steps = [line for line in lines if "loss" in line or not timed]
    last = {line["step"]: line["generation"] for line in steps}
    spans = [0.0]
    for before, after in itertools.pairwise(lines):
        span = after["time_s"] - before["time_s"]
        seconds["back" if span < 0 else "wall"] += abs(span)
        same = before["generation"] == after["generation"]
        seconds["idle"] += 0.0 if same else max(span, 0.0)
        spans.append(max(span, 0.0) if same else 0.0)
    for line, span in zip(lines, spans, strict=True):
        is_step = "loss" in line or not timed
        undone = is_step and last[line["step"]] != line["generation"]
        skipped = number(line.get("skipped", 0)) > 0
        kind = "repeated" if undone else "skipped" if skipped else "step"
        seconds[kind] += finite(line.get("step_time_s")) if timed else span
        seconds["stalled"] += finite(line.get("stall_s"))
    return seconds
