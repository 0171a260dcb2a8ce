# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Tables of runs, for a page and for a terminal: a column for each run.

Figures, settings, time, hosts, versions, the last launch, notes and damage.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from dovetail_runs.metrics.account import account_of
from dovetail_runs.metrics.metrics import Metrics
from dovetail_runs.record import job
from dovetail_runs.run import Run
from dovetail_runs.settings import flat, short
from dovetail_runs.summary import figures, summary
from dovetail_runs.words import words

_CAUSES = ("step", "skipped", "repeated", "stalled", "idle", "other")
_FIGURES = ("recipe", "state", "step", "steps", "mean_loss", "tokens_per_s", "stalled", "goodput")
_FIGURES += ("devices",)
_NOTHING = (None, [], "", {})  # settings of one run that are not shown
Table = dict[str, list[Any]]


def tables(runs: Mapping[str, Run | Metrics], shown: Mapping[str, Metrics]) -> dict[str, Table]:
    """Returns {title: {name: values}} with one value for each run, None where it has none.

    Tables without a row are left out. Of several runs settings and versions are those that differ.

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
    if not several:
        settings = [{k: v for k, v in settings[0].items() if v not in _NOTHING}]
    rows_of = differing if several else side_by_side
    sections = {
        "Figures": _figures(list(map(_figures_of, of_runs, read, last))),
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
    return {title: content for title, content in sections.items() if content}


def side_by_side(tables: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Returns {name: values}, one value for each table."""
    names = dict.fromkeys(name for table in tables for name in table)
    return {name: [table.get(name) for table in tables] for name in names}


def differing(tables: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Returns the rows of `side_by_side` whose values are not all equal."""
    rows = side_by_side(tables)
    return {name: row for name, row in rows.items() if any(value != row[0] for value in row)}


def devices_of_launch(begun: Mapping[str, Any]) -> str | None:
    """Returns the devices of a start of a launch, such as "8 × H100"; None without them."""
    devices = begun.get("devices")
    return devices and f"{devices.get('count', '?')} × {devices.get('kind', '?')}"


def _figures_of(run: Run | None, shown: Metrics, begun: Mapping[str, Any]) -> dict[str, Any]:
    row = {**(vars(summary(run)) if run else {}), **figures(shown)}
    shares = {name: row[name] for name in ("stalled", "goodput") if row[name] is not None}
    percents = {name: f"{share:.1%}" for name, share in shares.items()}
    return {**row, **percents, "devices": devices_of_launch(begun)}


def _figures(rows: Sequence[Mapping[str, Any]]) -> Table:
    figures = {words(name): [row.get(name) for row in rows] for name in _FIGURES}
    evaluations = side_by_side([{k: v for k, (_, v) in r["evaluations"].items()} for r in rows])
    tags = {"tags": [" ".join(row.get("tags", ())) or None for row in rows]}
    every = {**figures, **{f"last {words(k)}": v for k, v in evaluations.items()}, **tags}
    return {k: v for k, v in every.items() if any(value is not None for value in v)}


def _time(metrics: Metrics) -> dict[str, str]:
    """Returns wall time by cause, and the slowest process if one stands out."""
    if (account := account_of(metrics.lines)) is None:
        return {}
    rows = _shares({name: getattr(account, f"{name}_s") for name in _CAUSES})
    if account.clock_back_s:
        rows["the clock went back by"] = f"{account.clock_back_s:,.1f} s"
    if account.straggler is not None:
        rows["slowest"] = str(account.straggler)
    return rows


def _shares(seconds: Mapping[str, float]) -> dict[str, str]:
    whole_s = max(sum(seconds.values()), 1e-9)
    return {name: f"{part_s:,.1f} s, {part_s / whole_s:.1%}" for name, part_s in seconds.items()}


def _activities(metrics: Metrics) -> dict[str, str]:
    """Returns the last values of the running totals "seconds/ACTIVITY"."""
    names = [name for name in metrics.names if name.startswith("seconds/")]
    last = {words(name): metrics.updates(name).last() for name in names}
    return {name: f"{seconds[1]:,.1f} s" for name, seconds in last.items() if seconds}


def _hosts(run: Run) -> dict[str, str]:
    """Returns the launches on many hosts: each with its end, and the time in each state."""
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
        **_shares({f"{job.SIGNS[state]} {state}": total_s for state, total_s in totals.items()}),
        **({} if share is None else {"steps that count": f"{share:.1%}"}),
    }


def _launch(begun: Mapping[str, Any]) -> dict[str, Any]:
    git = (begun.get("git") or {}).get("code") or {}
    facts = {
        "time": begun.get("time"),
        "command": begun.get("command"),
        "host": begun.get("host"),
        "commit": git.get("commit", "")[:12] + (" with changes" if git.get("dirty") else ""),
    }
    return {name: fact for name, fact in facts.items() if fact}
