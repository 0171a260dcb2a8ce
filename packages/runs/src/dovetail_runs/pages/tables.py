# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The tables of a page as HTML: figures, settings, time, hosts, versions, notes, damage."""

import html
from collections.abc import Mapping, Sequence
from typing import Any

from dovetail_runs.compare import differing, side_by_side
from dovetail_runs.metrics.account import account_of
from dovetail_runs.metrics.metrics import Metrics
from dovetail_runs.pages.words import words
from dovetail_runs.record import job
from dovetail_runs.run import Run
from dovetail_runs.settings import flat, short
from dovetail_runs.summary import figures, summary

_CAUSES = ("step", "skipped", "repeated", "stalled", "idle", "other")
_FIGURES = ("recipe", "state", "step", "steps", "mean_loss", "tokens_per_s", "stalled", "goodput")


def tables(runs: Mapping[str, Run | Metrics], shown: Mapping[str, Metrics]) -> str:
    """Returns the tables of runs, each with a column for each run, as escaped HTML.

    Args:
        runs: Runs, or the metrics of a file, by the name to show.
        shown: The metrics of each that are shown.
    """
    read = list(shown.values())
    of_runs = [run if isinstance(run, Run) else None for run in runs.values()]
    last = [run.launches[-1] if run and run.launches else {} for run in of_runs]
    settings = short([flat(run.settings) if run else {} for run in of_runs])
    versions = [begun.get("versions", {}) for begun in last]
    several = len(runs) > 1
    rows_of = differing if several else side_by_side
    sections = {
        "Figures": _figures(list(map(_figures_of, of_runs, read))),
        "Settings that differ" if several else "Settings": rows_of(settings),
        "Where the time went": side_by_side([_time(metrics) for metrics in read]),
        "Activities that the loop logged": side_by_side([_activities(m) for m in read]),
        "On many hosts": side_by_side([_hosts(run) if run else {} for run in of_runs]),
        "Versions that differ" if several else "Versions": rows_of(versions),
        "Last launch": side_by_side([_launch(begun) for begun in last]),
        "Notes": side_by_side(
            [{n.time: n.text for n in run.notes} if run else {} for run in of_runs]
        ),
        "Damaged lines, left out": side_by_side(
            [{line.partition(": ")[0]: line for line in run.damage} for run in runs.values()]
        ),
    }
    return "".join(
        _table(title, content, list(runs)) for title, content in sections.items() if content
    )


def _figures_of(run: Run | None, shown: Metrics) -> dict[str, Any]:
    return {**(vars(summary(run)) if run else {}), **figures(shown)}


def _figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    figures = {words(name): [row.get(name) for row in rows] for name in _FIGURES}
    evaluations = side_by_side([{k: v for k, (_, v) in r["evaluations"].items()} for r in rows])
    tags = {"tags": [" ".join(row.get("tags", ())) or None for row in rows]}
    every = {**figures, **{f"last {words(k)}": v for k, v in evaluations.items()}, **tags}
    return {k: v for k, v in every.items() if any(value is not None for value in v)}


def _time(metrics: Metrics) -> dict[str, float]:
    """Returns seconds of wall time by cause."""
    account = account_of(metrics.lines)
    return {f"{name}, s": round(getattr(account, f"{name}_s"), 1) for name in _CAUSES if account}


def _activities(metrics: Metrics) -> dict[str, float]:
    """Returns the last values of the running totals "seconds/ACTIVITY"."""
    names = [name for name in metrics.names if name.startswith("seconds/")]
    last = {f"{words(name)}, s": metrics.updates(name).last() for name in names}
    return {name: round(seconds[1], 1) for name, seconds in last.items() if seconds}


def _hosts(run: Run) -> dict[str, Any]:
    """Returns the launches on many hosts: each with its states, and the seconds in each."""
    if not (launches := run.job):
        return {}
    totals = job.seconds([span for launch in launches for span in launch.spans])
    share = run.job_goodput
    return {
        **{
            f"launch {i}": f"{launch.outcome or 'no end recorded'} after "
            f"{launch.end_s - launch.begin_s:,.1f} s, {len(launch.log)} reports"
            for i, launch in enumerate(launches)
        },
        **{f"{state}, s": round(total_s, 1) for state, total_s in totals.items()},
        **({} if share is None else {"steps that count": f"{share:.1%}"}),
    }


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
    """Returns a table with a column for each run; one run needs no head."""
    several = len(runs) > 1
    heads = "".join(f"<th>{html.escape(run)}</th>" for run in runs)
    head = f"<thead><tr><th></th>{heads}</tr></thead>" if several else ""
    # On a phone each cell says its run.
    tags = [f'<td data-run="{html.escape(run)}">' if several else "<td>" for run in runs]
    lines = [
        f"<tr><th>{html.escape(name)}</th>"
        + "".join(f"{tag}{_cell(value)}</td>" for tag, value in zip(tags, values, strict=True))
        + "</tr>"
        for name, values in rows.items()
    ]
    return (
        f"<section><h2>{html.escape(title)}</h2><table>{head}"
        f"<tbody>{''.join(lines)}</tbody></table></section>"
    )


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return html.escape(f"{value:.6g}" if isinstance(value, float) else str(value))
