# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Runs as text: the list, a run, a comparison."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dovetail_runs._command import printable
from dovetail_runs.compare import Comparison
from dovetail_runs.find import Found
from dovetail_runs.metrics.account import Account
from dovetail_runs.record import job
from dovetail_runs.run import Run
from dovetail_runs.settings import flat
from dovetail_runs.summary import EVALUATION, WINDOW, Summary, summary

COLUMNS = ("state", "step", "mean loss", "tokens/s", "stalled", "goodput", "age")
_NOTHING = (None, [], "", {})  # settings that are not shown
SHOWN_LOSSES = 10  # of the steps that compared runs have in common
_WINDOW = (
    f"mean loss, tokens/s (median, without stalls) and stalled are over the last {WINDOW} updates, "
    "or all if there are fewer."
)


def listed(directory: Path, found: Found) -> str:
    """Returns a row for each run, the messages of damaged ones, and the other folders.

    Args:
        directory: The directory of the runs.
        found: Its content.
    """
    lines = [f"No run in {printable(str(directory))}."]
    if found.summaries or found.damaged:
        names = dict.fromkeys(n for row in found.summaries.values() for n in row.evaluations)
        heads = ["run", "recipe", *COLUMNS, *(n.removeprefix(EVALUATION) for n in names), "tags"]
        rows = [_row(name, row, list(names)) for name, row in found.summaries.items()]
        rows += [[name, "-", "damaged"] for name in found.damaged]
        lines = [table([heads, *rows]), _WINDOW]
    lines += [printable(f"damaged: {name}: {why}") for name, why in found.damaged.items()]
    lines += [
        printable(f"damaged lines: {row.damaged} of {name}, left out; show names them")
        for name, row in found.summaries.items()
        if row.damaged
    ]
    if found.foreign:
        lines.append(f"no runs: {', '.join(map(printable, found.foreign))}")
    return "\n".join(lines)


def shown(run: Run) -> str:
    """Returns everything about a run."""
    row = summary(run)
    cells = dict(zip(COLUMNS, _cells(row), strict=True))
    figures = [[f"  {name}", cell] for name, cell in cells.items() if name != "state"]
    evaluations = [
        [f"  {name}", value(number), f"after step {step}"]
        for name, (step, number) in row.evaluations.items()
    ]
    head = printable(f"{run.path}: {row.recipe or 'a run'}, {cells['state']}")
    blocks = [
        f"{head}\n{table(figures)}\n  {_WINDOW}",
        _section("tags", [[f"  {' '.join(row.tags)}"]] if row.tags else []),
        *_settings(run.settings),
        _section("last evaluations", evaluations),
        _section("where the time went, over all launches", _seconds(run.account)),
        _job(run.job, run.job_goodput),
        *map(_event, run.events),
        _section("media", _media(run)),
        _section("notes", [[f"  {note.time}", printable(note.text)] for note in run.notes]),
        _section("damaged lines, left out", [[f"  {line}"] for line in run.damage]),
    ]
    return "\n\n".join(filter(None, blocks))


def compared(comparison: Comparison) -> str:
    """Returns the comparison as a table with a column for each run."""
    steps, losses = _thinned(list(comparison.mean_losses)), comparison.mean_losses
    names = ("state", "step", "mean_loss", "tokens_per_s", "stalled", "goodput")
    figures = {name: [getattr(row, name) for row in comparison.summaries] for name in names}
    sections = {
        "": {"devices": comparison.devices, **figures},
        "settings that differ": comparison.settings,
        "versions that differ": comparison.versions,
        "mean loss at common steps": {str(step): losses[step] for step in steps},
        "last evaluations": comparison.evaluations,
    }
    rows = [["", *comparison.names]]
    for title, content in sections.items():
        if title:
            rows += [[title if content else f"{title}: none"]]
        rows += [[f"  {name}", *map(value, values)] for name, values in content.items()]
    return f"{table(rows)}\n{_WINDOW}"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Aligns columns. A row of a single cell makes no column wider."""
    rows = [[printable(cell) for cell in row] for row in rows]
    wide = [row for row in rows if len(row) > 1]
    count = max((len(row) for row in wide), default=1)
    widths = [max((len(row[i]) for row in wide if i < len(row)), default=0) for i in range(count)]
    lines = ("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=False)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def value(content: Any) -> str:
    """Returns a value of a table."""
    if content is None:
        return "-"
    return f"{content:.6g}" if isinstance(content, float) else str(content)


def _row(name: str, row: Summary, evaluations: Sequence[str]) -> list[str]:
    values = [value(row.evaluations[n][1]) if n in row.evaluations else "-" for n in evaluations]
    return [name, row.recipe or "-", *_cells(row), *values, " ".join(row.tags)]


def _cells(row: Summary) -> list[str]:
    """Returns cells in the order of COLUMNS."""
    rate = row.tokens_per_s
    return [
        row.state,
        str(row.step) if row.steps is None else f"{row.step}/{row.steps}",
        value(row.mean_loss),
        "-" if rate is None else f"{rate:,.0f}",
        *("-" if share is None else f"{share:.1%}" for share in (row.stalled, row.goodput)),
        _age(time.time() - row.updated),
    ]


def _settings(settings: Mapping[str, Any]) -> list[str]:
    """Returns a section for each group of settings, and one for those of no group."""
    groups = {name: group for name, group in settings.items() if isinstance(group, dict)}
    sections = {"settings": {k: v for k, v in settings.items() if k not in groups}, **groups}
    return [
        _section(title, [[f"  {k}", value(v)] for k, v in flat(group).items() if v not in _NOTHING])
        for title, group in sections.items()
    ]


def _section(title: str, rows: Sequence[Sequence[str]]) -> str:
    return f"{title}\n{table(rows)}" if rows else ""


def _seconds(account: Account | None) -> list[list[str]]:
    if account is None:
        return []
    names = ("step", "skipped", "repeated", "stalled", "idle", "other")
    seconds = {name: getattr(account, f"{name}_s") for name in names}
    whole = max(sum(seconds.values()), 1e-9)
    rows = [[f"  {name}", f"{s:,.1f} s", f"{s / whole:.1%}"] for name, s in seconds.items()]
    if account.clock_back_s:
        rows.append(["  the clock went back by", f"{account.clock_back_s:,.1f} s"])
    if account.straggler is not None:
        rows.append([f"  slowest      {account.straggler}"])
    return rows


def _job(launches: Sequence[job.JobLaunch], goodput: float | None) -> str:
    """Returns a bar and the log of each launch on many hosts, and the time in each state."""
    if not launches:
        return ""
    lines = ["on many hosts"]
    for launch in launches:
        begun = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(launch.begin_s))
        total_s = launch.end_s - launch.begin_s
        outcome = launch.outcome or "no end recorded"
        lines += [f"  {begun}  {outcome} after {total_s:,.1f} s", f"    {launch.bar()}"]
        # A report has its stacks below its first line. A traceback repeats the line before it.
        heads = [(at, printable(text.partition("\n")[0])) for at, text in launch.log]
        lines += [
            f"    {at - launch.begin_s:8,.1f} s  {head}"
            for at, head in heads
            if not head.startswith("Traceback")
        ]
    totals = job.seconds([span for launch in launches for span in launch.spans])
    whole_s = max(sum(totals.values()), 1e-9)
    rows = [
        [f"  {job.SIGNS[state]} {state}", f"{total_s:,.1f} s", f"{total_s / whole_s:.1%}"]
        for state, total_s in totals.items()
    ]
    share = "-" if goodput is None else f"{goodput:.1%}"
    return "\n".join([*lines, table([*rows, ["  steps that count", "", share]])])


def _media(run: Run) -> list[list[str]]:
    """Returns a row for each series of texts, images or histograms."""
    counts = Counter((medium.name, type(medium).__name__.lower()) for medium in run.media)
    return [[f"  {name}", f"{n} {kind}{'s' * (n > 1)}"] for (name, kind), n in counts.items()]


def _event(event: Mapping[str, Any]) -> str:
    """Returns a start or an end of a launch in a few lines."""
    if event["event"] == "end":
        reason = f": {event['error']}" if "error" in event else ""
        return printable(f"{event['time']}  {event.get('outcome', 'ended')}{reason}")
    devices, git = event.get("devices"), event.get("git") or {}
    fields = {
        "devices": devices and _devices(devices),
        "host": f"{event.get('host', '?')}, {event.get('cores', '?')} cores",
        "seeds": ", ".join(f"{k} {v}" for k, v in (event.get("seeds") or {}).items()),
        "git": ", ".join(f"{k} {_commit(v)}" for k, v in git.items()),
        "changes": ", ".join(
            f"{k} {value(v[0])} to {value(v[1])}" for k, v in (event.get("changes") or {}).items()
        ),
        "versions": ", ".join(f"{k} {v}" for k, v in (event.get("versions") or {}).items()),
    }
    number = f", start {event['generation']} of its job" if "generation" in event else ""
    head = printable(f"{event['time']}  started: {event.get('command', '?')}{number}")
    rows = [[f"  {name}", text] for name, text in fields.items() if text]
    return f"{head}\n{table(rows)}"


def _devices(devices: Mapping[str, Any]) -> str:
    axes = ", ".join(f"{axis}={size}" for axis, size in (devices.get("mesh") or {}).items())
    beside = axes or devices.get("platform", "?")
    return f"{devices.get('count', '?')} × {devices.get('kind', '?')} ({beside})"


def _commit(state: Mapping[str, Any] | None) -> str:
    if state is None:
        return "in no repository"
    words = {True: " with changes", False: "", None: ", changes unknown"}
    return f"{state['commit'][:12]}{words[state['dirty']]}"


def _thinned(steps: Sequence[int]) -> list[int]:
    """Returns at most SHOWN_LOSSES of the steps, evenly spaced, first and last included."""
    if len(steps) <= SHOWN_LOSSES:
        return list(steps)
    last, intervals = len(steps) - 1, SHOWN_LOSSES - 1
    return [steps[i * last // intervals] for i in range(SHOWN_LOSSES)]


def _age(seconds: float) -> str:
    """Returns the time in the largest unit that gives 2 or more."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
