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
from dovetail_runs.record import job
from dovetail_runs.run import Run
from dovetail_runs.summary import EVALUATION, WINDOW, Summary, summary
from dovetail_runs.tables import Table, tables

COLUMNS = ("state", "step", "mean loss", "tokens/s", "stalled", "goodput", "age")
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
    content = tables({"": run}, {"": run.metrics})
    for title in ("Versions", "Last launch"):  # those of each launch follow
        content.pop(title, None)
    row = summary(run)
    head = printable(f"{run.path}: {row.recipe or 'a run'}, {row.state}")
    blocks = [
        f"{head}, changed {_age(time.time() - row.updated)} ago",
        *(f"{title}\n{table(_rows(content[title]))}" for title in content),
        _WINDOW,
        *map(_job, run.job),
        *map(_event, run.events),
        _media(run),
        "\n".join(printable(f"page: {page}") for page in run.pages),
    ]
    return "\n\n".join(filter(None, blocks))


def compared(runs: Mapping[str, Run], comparison: Comparison) -> str:
    """Returns the tables of runs, with a column for each, and their losses at common steps.

    Args:
        runs: Runs by the name to show.
        comparison: Their comparison.
    """
    steps, losses = _thinned(list(comparison.mean_losses)), comparison.mean_losses
    sections = tables(runs, {name: run.metrics for name, run in runs.items()})
    for title in ("Last launch", "Notes", "Damaged lines, left out"):  # wide ones
        sections.pop(title, None)
    sections["Mean loss at common steps"] = {str(step): list(losses[step]) for step in steps}
    for title in ("Settings that differ", "Versions that differ"):
        sections.setdefault(title, {})
    rows = [["", *runs]]
    for title, content in sections.items():
        rows += [[title if content else f"{title}: none"], *_rows(content)]
    return f"{table(rows)}\n{_WINDOW}"


def _rows(content: Table) -> list[list[str]]:
    return [[f"  {name}", *map(value, values)] for name, values in content.items()]


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


def _job(launch: job.JobLaunch) -> str:
    """Returns a bar and the log of a launch on many hosts."""
    begun = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(launch.begin_s))
    # A report has its stacks below its first line. A traceback repeats the line before it.
    heads = [(at, printable(text.partition("\n")[0])) for at, text in launch.log]
    return "\n".join(
        [
            f"{begun}  on many hosts",
            f"  {launch.bar()}",
            *(
                f"  {at - launch.begin_s:8,.1f} s  {head}"
                for at, head in heads
                if not head.startswith("Traceback")
            ),
        ]
    )


def _media(run: Run) -> str:
    """Returns a line for each series of texts, images or histograms."""
    counts = Counter((medium.name, type(medium).__name__.lower()) for medium in run.media)
    rows = [[f"  {name}", f"{n} {kind}{'s' * (n > 1)}"] for (name, kind), n in counts.items()]
    return f"Media\n{table(rows)}" if rows else ""


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
