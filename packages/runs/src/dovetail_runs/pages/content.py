# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The content of a page: its charts as JSON values, and its tables as HTML."""

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from dovetail_runs.compare import differing, side_by_side
from dovetail_runs.metrics.account import Account
from dovetail_runs.metrics.metrics import Curve, Metrics
from dovetail_runs.pages import curves
from dovetail_runs.run import Run
from dovetail_runs.settings.fields import flat, short
from dovetail_runs.summary import Summary, summary

BYTES = 900_000  # of the numbers of a page
_POINT = 28  # bytes of a point and of its share in the medians, about
_FEW, _MANY = 24, 1000  # points of a curve
_SMOOTH_FROM = 50  # fewer values are best seen as they are
_ACTIVITIES = ("step", "skipped", "repeated", "stalled", "idle", "other")
# Not drawn: counts and totals, which say nothing as curves.
_LEFT = ("skipped", "goodput", "tokens", "count", "straggler")
_FIRST = ("loss", "eval/", "tokens_per_s", "rows_per_s", "mfu", "hfu")


def content(runs: Mapping[str, Run]) -> dict[str, Any]:
    """Returns {"runs": names, "charts": [...], "tables": HTML} as JSON values.

    Args:
        runs: Runs by the name to show.
    """
    read = {name: run.metrics for name, run in runs.items()}
    names = _ordered(dict.fromkeys(n for metrics in read.values() for n in metrics.names))
    lines = sum(len(metrics.names) for metrics in read.values())
    most = max(_FEW, min(_MANY, BYTES // (_POINT * max(1, lines))))
    charts = [_chart(name, read, most) for name in names]
    return {
        "runs": list(runs),
        "charts": [chart for chart in charts if chart["lines"]],
        "marks": [_marks(metrics) for metrics in read.values()],
        "tables": _tables(runs),
    }


def _ordered(names: Iterable[str]) -> list[str]:
    """Returns the names to draw: the loss, evaluations, rates, then the others as they came."""
    drawn = [n for n in names if n not in _LEFT and not n.startswith(("seconds/", "count/"))]
    drawn = [n for n in drawn if not n.startswith("straggler/")]

    def rank(name: str) -> tuple[int, int]:
        first = [i for i, begin in enumerate(_FIRST) if name.startswith(begin)]
        return (first[0] if first else len(_FIRST), drawn.index(name))

    return sorted(drawn, key=rank)


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
        lines.append(line | {"count": len(curve), "lost": _not_finite(curve)})
    return {"name": name, "lines": lines}


def _marks(metrics: Metrics) -> dict[str, list[int]]:
    """Returns the first steps of later launches, and skipped steps, at most 200 of each."""
    lines = metrics.lines
    _, first = np.unique(lines.generations, return_index=True)
    skipped = metrics.curve("skipped")
    return {
        "resumed": lines.steps[first[1:]].tolist()[:200],
        "skipped": skipped.steps[skipped.values > 0].tolist()[:200],
    }


def _json(steps: np.ndarray, values: np.ndarray) -> list[list[Any]]:
    """Returns [steps, values] with 5 digits; None for NaN."""
    rounded = [None if math.isnan(v) else float(f"{v:.5g}") for v in values.tolist()]
    return [steps.tolist(), rounded]


def _not_finite(curve: Curve) -> int:
    return int((~np.isfinite(curve.values)).sum())


def _tables(runs: Mapping[str, Run]) -> str:
    """Returns the tables: figures, settings, versions, time, notes, damage."""
    rows = [summary(run) for run in runs.values()]
    last = [run.launches[-1] if run.launches else {} for run in runs.values()]
    settings = short([flat(run.settings) for run in runs.values()])
    versions = [begun.get("versions", {}) for begun in last]
    several = len(runs) > 1
    rows_of = differing if several else side_by_side
    sections = {
        "Figures": _figures(rows),
        "Settings that differ" if several else "Settings": rows_of(settings),
        "Where the time went": _accounts([run.account for run in runs.values()]),
        "Versions that differ" if several else "Versions": rows_of(versions),
        "Last launch": side_by_side([_launch(begun) for begun in last]),
        "Notes": side_by_side([{n.time: n.text for n in run.notes} for run in runs.values()]),
        "Damaged lines, left out": side_by_side(
            [{line.partition(": ")[0]: line for line in run.damage} for run in runs.values()]
        ),
    }
    return "".join(
        _table(title, content, list(runs)) for title, content in sections.items() if content
    )


def _figures(rows: Sequence[Summary]) -> dict[str, list[Any]]:
    names = ("recipe", "state", "step", "steps", "mean_loss", "tokens_per_s", "stalled", "goodput")
    figures = {n.replace("_", " "): [getattr(row, n) for row in rows] for n in names}
    evaluations = side_by_side([{k: v for k, (_, v) in r.evaluations.items()} for r in rows])
    tags = {"tags": [" ".join(row.tags) or None for row in rows]}
    every = {**figures, **{f"last {k}": v for k, v in evaluations.items()}, **tags}
    return {k: v for k, v in every.items() if any(value is not None for value in v)}


def _accounts(accounts: Sequence[Account | None]) -> dict[str, list[Any]]:
    tables = [
        {f"{name}, s": round(getattr(a, f"{name}_s"), 1) for name in _ACTIVITIES} if a else {}
        for a in accounts
    ]
    return side_by_side(tables)


def _launch(begun: Mapping[str, Any]) -> dict[str, Any]:
    devices, git = begun.get("devices") or {}, (begun.get("git") or {}).get("code") or {}
    facts = {
        "time": begun.get("time"),
        "command": begun.get("command"),
        "host": begun.get("host"),
        "devices": devices and f"{devices.get('count')} × {devices.get('kind')}",
        "commit": git.get("commit", "")[:12] + (" with changes" if git.get("dirty") else ""),
    }
    return {name: fact for name, fact in facts.items() if fact}


def _table(title: str, rows: Mapping[str, Sequence[Any]], runs: Sequence[str]) -> str:
    heads = "".join(f"<th>{html.escape(run)}</th>" for run in runs)
    lines = [
        f"<tr><th>{html.escape(name)}</th>"
        + "".join(
            f'<td data-run="{html.escape(run)}">{_cell(value)}</td>'
            for run, value in zip(runs, values, strict=True)
        )
        + "</tr>"
        for name, values in rows.items()
    ]
    return (
        f"<section><h2>{html.escape(title)}</h2><table><thead><tr><th></th>{heads}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table></section>"
    )


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return html.escape(f"{value:.6g}" if isinstance(value, float) else str(value))
