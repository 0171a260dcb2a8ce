# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The command `python -m dovetail_runs`: list, show, compare, watch, export, note, tag.

It reads files of the runs only, so a run may still be running. Another command can mount
`add_arguments` and `run`.
"""

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dovetail_runs._command import DONE, Parser, add_action, add_json, answering, printable
from dovetail_runs.command import text
from dovetail_runs.compare import compare
from dovetail_runs.export import FORMATS, export
from dovetail_runs.find import find
from dovetail_runs.pages.page import page
from dovetail_runs.pages.watch import Watch
from dovetail_runs.run import SETTINGS, Run
from dovetail_runs.summary import summary


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the actions to `parser`. Pass the parsed arguments to `run`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, declare, act in (
        ("list", _list, _print_list),
        ("show", _show, _print_run),
        ("compare", _compare, _print_comparison),
        ("watch", _watch, _serve),
        ("export", _export, _write_export),
        ("note", _note, _add_note),
        ("tag", _tag, _set_tags),
    ):
        action = add_action(actions, name, declare)
        add_json(action)
        action.set_defaults(act=act)


def run(args: argparse.Namespace) -> int:
    """Runs the parsed action and returns the exit code. Raises the library's errors."""
    try:
        args.act(args)
    except ValueError as error:
        if args.action == "show" and not (args.path / SETTINGS).is_file():
            error.add_note("(list shows the runs of a directory)")
        raise
    return DONE


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns an exit code, one of those in --help."""
    parser = Parser(
        prog="python -m dovetail_runs",
        description="List the training runs in a directory, show one, or compare several.",
    )
    add_arguments(parser)
    args = parser.parse(argv)
    with answering(args):
        args.code = run(args)
    return args.code


def _list(parser: argparse.ArgumentParser) -> None:
    """Say of each run in a directory how far it is, and name damaged runs and other folders."""
    parser.add_argument(
        "directory", type=Path, nargs="?", default=Path(), metavar="DIR", help="of the runs (here)"
    )
    parser.add_argument(
        "--tag", dest="tags", action="append", default=[], help="runs with this tag; repeat it"
    )


def _show(parser: argparse.ArgumentParser) -> None:
    """Show a run: settings, every launch with its versions, evaluations, figures, notes."""
    _add_run(parser)
    _add_html(parser)


def _compare(parser: argparse.ArgumentParser) -> None:
    """Compare runs: differing settings, losses at common steps, evaluations, speed."""
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="runs, two or more")
    _add_html(parser)


def _watch(parser: argparse.ArgumentParser) -> None:
    """Serve a page that follows runs, on 127.0.0.1 alone. Ctrl-C ends it."""
    parser.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN", help="runs, or one directory of runs"
    )
    parser.add_argument("--port", type=int, default=0, metavar="N", help="the port (a free one)")
    parser.add_argument(
        "--every", type=float, default=5.0, metavar="S", help="seconds between readings (5)"
    )


def _export(parser: argparse.ArgumentParser) -> None:
    """Copy the scalars and media of a run for TensorBoard, or as an offline run of W&B."""
    _add_run(parser)
    parser.add_argument("--to", choices=FORMATS, required=True, help="the other program")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="a new directory of the program"
    )
    parser.add_argument("--project", default="runs", metavar="NAME", help="project of W&B (runs)")


def _note(parser: argparse.ArgumentParser) -> None:
    """Add a note to a run; also while it is running."""
    _add_run(parser)
    parser.add_argument("text", metavar="TEXT", help="the note, in quotes")


def _tag(parser: argparse.ArgumentParser) -> None:
    """Add tags to a run, or remove some; also while it is running."""
    _add_run(parser)
    parser.add_argument("tags", nargs="+", metavar="TAG", help="words without blanks")
    parser.add_argument("--remove", action="store_true", help="remove them")


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", type=Path, metavar="RUN", help="the folder of a run")


def _add_note(args: argparse.Namespace) -> None:
    changed = Run(args.path)
    changed.note(args.text)
    if args.json:
        _print_object({"notes": [dataclasses.asdict(note) for note in changed.notes]})


def _write_export(args: argparse.Namespace) -> None:
    written = export(args.path, args.out, to=args.to, project=args.project)
    if args.json:
        _print_object({"directory": str(written)})
    else:
        print(printable(f"written: {written}"))


def _add_html(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write a page with the curves too"
    )


def _serve(args: argparse.Namespace) -> None:
    if args.every <= 0:
        args.parser.error(f"--every must be above 0, got --every {args.every:g}")
    whole = len(args.runs) == 1 and not (args.runs[0] / SETTINGS).is_file()
    known: dict[str, Run] = {} if whole else {str(path): Run(path) for path in args.runs}

    def runs() -> dict[str, Run]:
        if whole:
            for name, run in find(args.runs[0]).runs.items():
                known.setdefault(name, run)
        return known

    if not runs():
        raise ValueError(f"a page needs a run, got none in {str(args.runs[0])!r}: name another")
    with Watch(runs, port=args.port, every_s=args.every) as watch:
        if args.json:
            _print_object({"address": watch.address})
        else:
            print(f"Watch {len(runs())} runs at {watch.address}", flush=True)
        watch.serve()


def _set_tags(args: argparse.Namespace) -> None:
    changed = Run(args.path)
    (changed.untag if args.remove else changed.tag)(*args.tags)
    if args.json:
        _print_object({"tags": changed.tags})
    else:
        print(printable(f"tags: {' '.join(changed.tags) or 'none'}"))


def _print_list(args: argparse.Namespace) -> None:
    content = find(args.directory, tags=args.tags)
    if not args.json:
        print(text.listed(args.directory, content))
        return
    rows = {name: dataclasses.asdict(row) for name, row in content.summaries.items()}
    others = {"damaged": dict(content.damaged), "foreign": list(content.foreign)}
    _print_object({"runs": rows, **others})


def _print_run(args: argparse.Namespace) -> None:
    shown = Run(args.path)
    _write_page(args, {args.path.name or str(args.path): shown})
    if not args.json:
        print(text.shown(shown))
        return
    account = shown.account
    _print_object(
        {
            **dataclasses.asdict(summary(shown)),
            "settings": shown.settings,
            "events": shown.events,
            "account": account and dataclasses.asdict(account),
            "job": [launch.json() for launch in shown.job],
            "job_goodput": shown.job_goodput,
            "notes": [dataclasses.asdict(note) for note in shown.notes],
            "damage": shown.damage,
            "pages": [str(page) for page in shown.pages],
        }
    )


def _print_comparison(args: argparse.Namespace) -> None:
    names = [str(path) for path in args.runs]
    if len(set(names)) < max(2, len(names)):
        args.parser.error(f"compare needs two runs or more, each once, got {' '.join(names)}")
    runs = dict(zip(names, map(Run, args.runs), strict=True))
    comparison = compare(runs)
    _write_page(args, runs)
    if not args.json:
        print(text.compared(runs, comparison))
        return
    _print_object(dataclasses.asdict(comparison))


def _write_page(args: argparse.Namespace, runs: dict[str, Run]) -> None:
    if args.html is not None:
        page(runs).write(args.html)


def _print_object(content: dict[str, Any]) -> None:
    print(json.dumps(content, indent=2), flush=True)
