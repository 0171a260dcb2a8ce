# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The command `python -m dovetail_runs`: list, show, compare, note, tag.

It reads files of the runs only, so a run may still be running. Another command can mount
`add_arguments` and `run`.
"""

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dovetail_runs._command import DONE, Parser, add_action, add_json, answering
from dovetail_runs.command import text
from dovetail_runs.compare import compare
from dovetail_runs.find import find
from dovetail_runs.run import Run
from dovetail_runs.summary import summary


def add_arguments(parser: argparse.ArgumentParser) -> dict[str, Parser]:
    """Adds the actions to `parser` and returns theirs by name. Pass the arguments to `run`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    declared = {"list": _list, "show": _show, "compare": _compare, "note": _note, "tag": _tag}
    return {name: add_action(actions, name, declare) for name, declare in declared.items()}


def run(args: argparse.Namespace) -> int:
    """Runs the parsed action and returns the exit code. Raises the library's errors."""
    args.act(args)
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
    parser.add_argument("directory", type=Path, metavar="DIR", help="the directory of the runs")
    parser.add_argument(
        "--tag", dest="tags", action="append", default=[], help="runs with this tag; repeat it"
    )
    add_json(parser)
    parser.set_defaults(act=_print_list)


def _show(parser: argparse.ArgumentParser) -> None:
    """Show a run: settings, every launch with its versions, evaluations, figures, notes."""
    _add_run(parser)
    add_json(parser)
    parser.set_defaults(act=_print_run)


def _compare(parser: argparse.ArgumentParser) -> None:
    """Compare runs: differing settings, losses at common steps, evaluations, speed."""
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="runs, two or more")
    add_json(parser)
    parser.set_defaults(act=_print_comparison)


def _note(parser: argparse.ArgumentParser) -> None:
    """Add a note to a run; also while it is running."""
    _add_run(parser)
    parser.add_argument("text", metavar="TEXT", help="the note, in quotes")
    add_json(parser)
    parser.set_defaults(act=_add_note)


def _tag(parser: argparse.ArgumentParser) -> None:
    """Add tags to a run, or remove some; also while it is running."""
    _add_run(parser)
    parser.add_argument("tags", nargs="+", metavar="TAG", help="words without blanks")
    parser.add_argument("--remove", action="store_true", help="remove them")
    add_json(parser)
    parser.set_defaults(act=_set_tags)


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", type=Path, metavar="RUN", help="the folder of a run")


def _add_note(args: argparse.Namespace) -> None:
    changed = Run(args.path)
    changed.note(args.text)
    if args.json:
        _print_object({"notes": [dataclasses.asdict(note) for note in changed.notes]})


def _set_tags(args: argparse.Namespace) -> None:
    changed = Run(args.path)
    (changed.untag if args.remove else changed.tag)(*args.tags)
    if args.json:
        _print_object({"tags": changed.tags})
    else:
        print(f"tags: {' '.join(changed.tags) or 'none'}")


def _print_list(args: argparse.Namespace) -> None:
    found = find(args.directory, tags=args.tags)
    if not args.json:
        print(text.listed(args.directory, found))
        return
    rows = {name: dataclasses.asdict(row) for name, row in found.summaries.items()}
    others = {"damaged": dict(found.damaged), "foreign": list(found.foreign)}
    _print_object({"runs": rows, **others})


def _print_run(args: argparse.Namespace) -> None:
    shown = Run(args.path)
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
        }
    )


def _print_comparison(args: argparse.Namespace) -> None:
    names = [str(path) for path in args.runs]
    if len(set(names)) < max(2, len(names)):
        args.parser.error(f"compare needs two runs or more, each once, got {' '.join(names)}")
    comparison = compare(dict(zip(names, map(Run, args.runs), strict=True)))
    if not args.json:
        print(text.compared(comparison))
        return
    _print_object(dataclasses.asdict(comparison))


def _print_object(content: dict[str, Any]) -> None:
    print(json.dumps(content, indent=2))
