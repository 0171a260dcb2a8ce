# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""List the training runs in a directory, show one, or compare several.

The command reads files of the runs only. It touches no device, and a run may still be running.
"""

import argparse
import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dovetail_stack import runs, settings, states
from dovetail_stack._command import add_action, add_json
from dovetail_stack.recipes.options import METRICS

COLUMNS = ("state", "step", "mean loss", "bits/byte", "tokens/s", "stalled", "goodput", "age")
_WINDOW = (
    f"mean loss, tokens/s (median, without stalls) and stalled are over the last {runs.WINDOW} "
    f"updates, or all if there are fewer."
)
SHOWN_LOSSES = 10  # of the steps that compared runs have in common


def add(parser: argparse.ArgumentParser) -> None:
    """Declares an action each."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, declare in {"list": _list, "show": _show, "compare": _compare}.items():
        add_json(add_action(actions, name, declare))


def run(args: argparse.Namespace) -> int:
    """Runs the action; returns its exit code."""
    return args.act(args)


def _list(parser: argparse.ArgumentParser) -> None:
    """Say of each run in a directory how far it is, and name damaged runs and other folders."""
    parser.add_argument("directory", type=Path, metavar="DIR", help="the directory of the runs")
    parser.set_defaults(act=list_runs)


def _show(parser: argparse.ArgumentParser) -> None:
    """Show a run: settings, every launch with its versions, evaluations, figures."""
    parser.add_argument("run_path", type=Path, metavar="RUN", help="a run's directory")
    parser.set_defaults(act=show)


def _compare(parser: argparse.ArgumentParser) -> None:
    """Compare runs: differing settings, losses at common steps, evaluations, speed."""
    parser.add_argument("run_paths", type=Path, nargs="+", metavar="RUN", help="runs, two or more")
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write a page with the curves too"
    )
    parser.set_defaults(act=compare)


def list_runs(args: argparse.Namespace) -> int:
    """Prints a row for each run."""
    content = runs.find(args.directory)
    summaries = {name: run.summary() for name, run in content.runs.items()}
    if args.json:
        others = {"damaged": dict(content.damaged), "foreign": list(content.foreign)}
        print(json.dumps({"runs": summaries, **others}, indent=2))
        return 0
    if not summaries and not content.damaged:
        print(f"No run in {args.directory}.")
    else:
        rows = [[name, summary["recipe"], *_row(summary)] for name, summary in summaries.items()]
        rows += [[name, "-", "damaged"] for name in content.damaged]
        print(_table([["run", "recipe", *COLUMNS], *rows]))
        print(_WINDOW)
    for name, reason in content.damaged.items():
        print(f"damaged: {name}: {reason}")
    if content.foreign:
        print(f"no runs: {', '.join(content.foreign)}")
    return 0


def show(args: argparse.Namespace) -> int:
    """Prints everything about a run."""
    run = runs.load(args.run_path)
    parts = {name: _fields(group) for name, group in _parts(run).items()}
    if args.json:
        content = {**run.summary(), "settings": parts, "events": list(run.events)}
        content["account_s"] = runs.account(run)
        slowest = runs.straggler(run)
        content["straggler"] = None if slowest is None else dataclasses.asdict(slowest)
        content["job"] = [launch.json() for launch in runs.job(run)]
        content["job_goodput"] = runs.job_goodput(run)
        evaluations = {k: {"step": s, "value": v} for k, (s, v) in run.evaluations().items()}
        print(json.dumps({**content, "evaluations": evaluations}, indent=2))
        return 0
    summary = run.summary()
    cells = dict(zip(COLUMNS, _row(summary), strict=True))
    print(f"{args.run_path}: {summary['recipe']}, {cells.pop('state')}")
    print(_table([[f"  {name}", value] for name, value in cells.items()]))
    print(f"  {_WINDOW}")
    for name, group in parts.items():
        if rows := [[f"  {f}", _value(v)] for f, v in group.items() if v not in (None, (), "")]:
            print(f"\n{name}")
            print(_table(rows))
    if run.evaluations():
        print("\nlast evaluations")
        evaluations = run.evaluations().items()
        print(_table([[f"  {k}", _value(v), f"after step {step}"] for k, (step, v) in evaluations]))
    if (account := runs.account(run)) is not None:
        whole = max(sum(account.values()), 1e-9)
        print("\nwhere the time went, over all launches")
        rows = [[f"  {k}", f"{v:,.1f} s", f"{v / whole:.1%}"] for k, v in account.items()]
        print(_table(rows))
    if (slowest := runs.straggler(run)) is not None:
        print(f"  slowest      {slowest}")
    if launches := runs.job(run):
        print("\n" + _job(launches, runs.job_goodput(run)))
    for event in run.events:
        print("\n" + _event(event))
    return 0


def compare(args: argparse.Namespace) -> int:
    """Prints the comparison."""
    names = [str(path) for path in args.run_paths]
    if len(set(names)) < max(2, len(names)):
        args.parser.error(f"compare needs two runs or more, each once, got {' '.join(names)}")
    some = {name: runs.load(path) for name, path in zip(names, args.run_paths, strict=True)}
    if args.html is not None:
        from dovetail_train.reports.report import write_report

        metrics = {name: run.path / METRICS for name, run in some.items()}
        facts = {name: runs.facts(run) for name, run in some.items()}
        write_report(args.html, metrics, title="Training runs", facts=facts)
    comparison = runs.compare(some)
    print(json.dumps(comparison, indent=2) if args.json else _compared(comparison))
    return 0


def _compared(comparison: Mapping[str, Any]) -> str:
    """Returns the comparison as a table with a column for each run."""
    steps, losses = _thinned(list(comparison["mean_losses"])), comparison["mean_losses"]
    figures = ("state", "devices", "step", "mean_loss", "tokens_per_s", "stalled", "goodput")
    sections = {
        "": {name: comparison[name] for name in figures},
        "settings that differ": comparison["settings"],
        "versions that differ": comparison["versions"],
        "mean loss at common steps": {str(step): losses[step] for step in steps},
        "last evaluations": comparison["evaluations"],
    }
    rows = [["", *comparison["runs"]]]
    for title, table in sections.items():
        if title:
            rows += [[title if table else f"{title}: none"]]
        rows += [[f"  {name}", *map(_value, values)] for name, values in table.items()]
    return f"{_table(rows)}\n{_WINDOW}"


def _thinned(steps: Sequence[int]) -> list[int]:
    """Returns at most SHOWN_LOSSES of the steps, evenly spaced, first and last included."""
    if len(steps) <= SHOWN_LOSSES:
        return list(steps)
    last, intervals = len(steps) - 1, SHOWN_LOSSES - 1
    return [steps[i * last // intervals] for i in range(SHOWN_LOSSES)]


def _parts(run: runs.Run) -> dict[str, Any]:
    return {name: getattr(run.settings, name) for name in settings.parts(type(run.settings))}


def _fields(group: Any) -> dict[str, Any]:
    return dict(vars(group))


def _job(launches: Sequence[states.JobLaunch], goodput: float | None) -> str:
    """Returns a bar and the log of each launch on many hosts, and the time in each state."""
    lines = ["on many hosts"]
    for launch in launches:
        begun = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(launch.begin_s))
        total_s = launch.end_s - launch.begin_s
        outcome = launch.outcome or "no end recorded"
        lines += [f"  {begun}  {outcome} after {total_s:,.1f} s", f"    {launch.bar()}"]
        # A report has its stacks below its first line. A traceback repeats the line before it.
        heads = [(at, text.partition("\n")[0]) for at, text in launch.log]
        lines += [
            f"    {at - launch.begin_s:8,.1f} s  {head}"
            for at, head in heads
            if not head.startswith("Traceback")
        ]
    totals = states.seconds([span for launch in launches for span in launch.spans])
    whole_s = max(sum(totals.values()), 1e-9)
    rows = [
        [f"  {states.SIGNS[state]} {state}", f"{total_s:,.1f} s", f"{total_s / whole_s:.1%}"]
        for state, total_s in totals.items()
    ]
    share = "-" if goodput is None else f"{goodput:.1%}"
    return "\n".join([*lines, _table([*rows, ["  steps that count", "", share]])])


def _event(event: Mapping[str, Any]) -> str:
    """Returns a start or an end of `launches.jsonl` in a few lines."""
    if event["event"] == "end":
        reason = f": {event['error']}" if "error" in event else ""
        return f"{event['time']}  {event['outcome']}{reason}"
    devices, git = event["devices"], event["git"]
    mesh = ", ".join(f"{axis}={size}" for axis, size in devices["mesh"].items())
    start = f", start {event['generation']} of its job" if "generation" in event else ""
    lines = [
        f"{event['time']}  started: {event['command']}{start}",
        f"  devices   {devices['count']} × {devices['kind']} ({mesh or devices['platform']})",
        f"  host      {event['host']}, {event['cores']} cores",
        f"  seeds     {', '.join(f'{k} {v}' for k, v in event['seeds'].items())}",
        f"  git       directory {_commit(git['directory'])}, code {_commit(git['code'])}",
        f"  versions  {', '.join(f'{k} {v}' for k, v in event['versions'].items())}",
    ]
    return "\n".join(lines)


def _commit(state: Mapping[str, Any] | None) -> str:
    if state is None:
        return "in no repository"
    words = {True: " with changes", False: "", None: ", changes unknown"}
    return state["commit"][:12] + words[state["dirty"]]


def _row(summary: Mapping[str, Any]) -> list[str]:
    """Returns cells in the order of COLUMNS."""
    steps = "?" if summary["steps"] is None else summary["steps"]
    rate = summary["tokens_per_s"]
    return [
        summary["state"],
        f"{summary['step']}/{steps}",
        _value(summary["mean_loss"]),
        _value(summary["bits_per_byte"]),
        "-" if rate is None else f"{rate:,.0f}",
        *("-" if summary[x] is None else f"{summary[x]:.1%}" for x in ("stalled", "goodput")),
        _age(time.time() - summary["updated"]),
    ]


def _age(seconds: float) -> str:
    """Returns the time in the largest unit that gives 2 or more."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def _value(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Aligns columns. A row of a single cell makes no column wider."""
    wide = [row for row in rows if len(row) > 1]
    count = max((len(row) for row in wide), default=1)
    widths = [max((len(row[i]) for row in wide if i < len(row)), default=0) for i in range(count)]
    lines = ("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=False)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
