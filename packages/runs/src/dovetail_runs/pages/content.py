# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The content of a page: its charts as JSON values, its sections and tables as HTML."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from dovetail_runs.metrics.metrics import Metrics
from dovetail_runs.pages import curves
from dovetail_runs.pages.media import heat_charts, media_html
from dovetail_runs.pages.section import Section
from dovetail_runs.pages.tables import tables_html
from dovetail_runs.run import Run
from dovetail_runs.tables import tables
from dovetail_runs.words import words

BYTES = 900_000  # of the numbers of a page
_POINT = 28  # bytes of a point and of its share in the medians, about
_FEW, _MANY = 24, 1000  # points of a curve
_MARKS = 200
_SMOOTH_FROM = 50  # fewer values are best seen as they are
_SPEED, _OF_SPEED = "Throughput", ("tokens_per_s", "rows_per_s", "mfu", "hfu", "step_time_s")
# Not drawn: counts and totals, which say nothing as curves.
_LEFT = ("skipped", "goodput", "stall_s", "tokens", "count", "straggler")
_TOTALS = ("seconds/", "count/", "straggler/")
_FIRST = ("Loss", "Evaluation", _SPEED, "Norms")  # groups; the others follow as they come
_OTHERS = "Other scalars"


def content(
    runs: Mapping[str, Run | Metrics],
    *,
    sections: Sequence[Section] = (),
    leave_out: Collection[str] = (),
) -> dict[str, Any]:
    """Returns {"runs": names, "charts", "marks", "sections": HTML, "tables": HTML} as JSON values.

    Args:
        runs: Runs, or the metrics of a file, by the name to show.
        sections: Sections of the caller.
        leave_out: Names of scalars that are not shown.
    """
    every = {n: run.metrics if isinstance(run, Run) else run for n, run in runs.items()}
    read = {name: metrics.without(leave_out) for name, metrics in every.items()}
    names = _ordered(name for metrics in read.values() for name in metrics.names)
    lines = sum(len(metrics.names) for metrics in read.values())
    of_runs = {name: run for name, run in runs.items() if isinstance(run, Run)}
    media, heat = media_html(of_runs), heat_charts(of_runs)
    left = BYTES - len(media) - sum(len(str(chart)) for chart in heat)
    most = max(_FEW, min(_MANY, left // (_POINT * max(1, lines))))
    charts = [_chart(name, read, most) for name in names]
    return {
        "runs": list(runs),
        "charts": [*(chart for chart in charts if chart["lines"]), *heat],
        "marks": [_marks(metrics) for metrics in read.values()],
        "sections": "".join(section.html() for section in sections) + media,
        "tables": tables_html(tables(runs, read), list(runs)),
    }


def _group(name: str) -> str:
    """Returns the heading of a chart: by kind, or by the part of the name before a "/"."""
    head, slash, _ = name.partition("/")
    if name == "eval/loss" or head == "loss":
        return "Loss"
    if head.startswith("eval"):
        return "Evaluation"
    if name in _OF_SPEED:
        return _SPEED
    if name.endswith("_norm"):
        return "Norms"
    return words(head).capitalize() if slash else _OTHERS


def _ordered(names: Iterable[str]) -> list[str]:
    """Returns the names to draw by groups, each once: the loss, then as they came."""
    drawn = [n for n in dict.fromkeys(names) if n not in _LEFT and not n.startswith(_TOTALS)]
    groups = list(dict.fromkeys([*_FIRST, *map(_group, drawn)]))
    ranks = {group: i for i, group in enumerate(groups)} | {_OTHERS: len(groups)}
    return sorted(drawn, key=lambda name: (ranks[_group(name)], name != "loss"))


def _chart(name: str, read: Mapping[str, Metrics], most: int) -> dict[str, Any]:
    lines = []
    for number, metrics in enumerate(read.values()):
        if not (curve := metrics.curve(name)):
            continue
        line: dict[str, Any] = {"run": number, "raw": _json(*curves.thinned(curve, most))}
        if len(curve) >= _SMOOTH_FROM:
            line["medians"] = {
                str(level): _json(*curves.median(curve, level, max(6, most // 4)))
                for level in curves.LEVELS
            }
        lost = int((~np.isfinite(curve.values)).sum())
        lines.append(line | {"count": len(curve), "lost": lost})
    group = _group(name)
    of_chart = {"name": name, "title": words(name), "group": group, "from_zero": group == _SPEED}
    return {**of_chart, "lines": lines}


def _marks(metrics: Metrics) -> dict[str, list[int]]:
    """Returns at most 200 of each: first steps of later launches, skipped and stalled steps."""
    lines = metrics.lines
    _, first = np.unique(lines.generations, return_index=True)
    skipped, stalls, times = map(metrics.curve, ("skipped", "stall_s", "step_time_s"))
    _, at, same = np.intersect1d(stalls.steps, times.steps, return_indices=True)
    stalled = stalls.steps[at][stalls.values[at] > times.values[same]]
    steps = {
        "resumed": lines.steps[first[1:]],
        "skipped": skipped.steps[skipped.values > 0],
        "stalled": stalled,
    }
    return {name: some.tolist()[:_MARKS] for name, some in steps.items()}


def _json(steps: np.ndarray, values: np.ndarray) -> list[list[Any]]:
    """Returns [steps, values] with 5 digits; None for NaN."""
    rounded = [None if math.isnan(v) else float(f"{v:.5g}") for v in values.tolist()]
    return [steps.tolist(), rounded]
