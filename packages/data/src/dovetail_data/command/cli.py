# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The command `python -m dovetail_data`: write, inspect, verify, budget.

Another command can mount `add_arguments` and `run`. Results go to standard output, all else to
standard error.
"""

import argparse
import dataclasses
import io
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import get_args

from dovetail_data import _command
from dovetail_data._command import Parser, add_json, answering
from dovetail_data.command import inspect as _cli_inspect
from dovetail_data.command import verify as _cli_verify
from dovetail_data.command import write as _cli_write
from dovetail_data.corpus.corpus import Corpus
from dovetail_data.mixture.mix import mix
from dovetail_data.mixture.timeline import Exhausted
from dovetail_data.rows.budget import budget
from dovetail_data.sources._remote import located
from dovetail_data.writing.write import Progress

__all__ = ["add_arguments", "main", "run"]

_EXHAUSTED = "when a corpus ends: repeat it, stop the run, or go on without it (repeat)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the actions to `parser`. Pass the parsed arguments to `run`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, declare, act in (
        ("write", _cli_write.declare, _cli_write.run),
        ("inspect", _cli_inspect.declare, _cli_inspect.run),
        ("verify", _cli_verify.declare, _cli_verify.run),
        ("budget", _declare_budget, _run_budget),
    ):
        action = _command.add_action(actions, name, declare)
        action.words["directory"] = "DIR"  # a corpus, in the words of the library
        action.set_defaults(act=act)


def run(args: argparse.Namespace, *, progress: Callable[[Progress], object] | None = None) -> int:
    """Runs the parsed action and returns the exit code. Raises the library's errors."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Documents hold characters that a terminal may lack: better escaped than an error.
        sys.stdout.reconfigure(errors="backslashreplace")
    print(args.act(args, progress))
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns an exit code, one of those in --help."""
    parser = Parser(
        prog="python -m dovetail_data",
        description="Write, inspect and verify corpora; budget a run over them.",
    )
    add_arguments(parser)
    args = parser.parse(argv)
    with answering(args), _Line() as line:
        args.code = run(args, progress=line)
    return args.code


class _Line:
    """Progress of `write` in one line that is written over and over; on a terminal alone."""

    def __init__(self) -> None:
        self._shown = ""

    def __enter__(self) -> "_Line":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._show("")

    def __call__(self, done: Progress) -> None:
        if done.bytes == done.total_bytes:
            self._show("")
            return
        self._show(
            f"write: {done.bytes / 1e6:,.0f} of {done.total_bytes / 1e6:,.0f} MB, "
            f"{done.documents:,} documents, {done.tokens:,} tokens"
        )

    def _show(self, text: str) -> None:
        if text != self._shown and sys.stderr.isatty():
            sys.stderr.write("\r" + text.ljust(len(self._shown)) + ("" if text else "\r"))
            sys.stderr.flush()
            self._shown = text


def _declare_budget(parser: argparse.ArgumentParser) -> None:
    """Count the rows, epochs and tokens that a run takes from each corpus. Reads no document."""
    add = parser.add_argument
    add(
        "corpora",
        type=located,
        nargs="*",
        metavar="DIR",
        help="corpus or its URL, named as its directory",
    )
    add(
        "--name",
        action="append",
        default=[],
        metavar="NAME=DIR",
        help="corpus with a name of its own",
    )
    add(
        "--weights",
        nargs="+",
        default=[],
        metavar="NAME=W",
        help="share of each corpus in the rows",
    )
    add("--exhausted", choices=get_args(Exhausted), default="repeat", help=_EXHAUSTED)
    add("--global-batch", type=int, required=True, metavar="B", help="rows per step")
    add("--steps", type=int, required=True, metavar="N", help="steps of the run")
    _cli_inspect.add_packing(parser)
    add_json(parser)


def _run_budget(args: argparse.Namespace, progress: object) -> str:
    directories = [(_name(path), path) for path in args.corpora]
    directories += [(name, located(path)) for name, path in map(_named, args.name)]
    if not directories:
        raise ValueError("a budget must have a corpus: got none. Pass DIR, or --name NAME=DIR.")
    rows = {}
    for name, path in directories:
        if name in rows:
            raise ValueError(
                f"corpora must have names of their own: got {name!r} twice. Pass --name NAME=DIR."
            )
        rows[name], _ = _cli_inspect.rows_of(Corpus(path), args)
    weights = {name: _number(name, value) for name, value in map(_named, args.weights)}
    if len(rows) == 1 and not weights:
        weights = dict.fromkeys(rows, 1.0)
    if set(weights) != set(rows):
        example = " ".join(f"{name}={weights.get(name, 1 / len(rows)):.3g}" for name in rows)
        raise ValueError(
            f"--weights must name each corpus, {', '.join(rows)}: got "
            f"{', '.join(weights) or 'none'}. Type --weights {example}."
        )
    counted = budget(
        mix(rows, weights=weights, exhausted=args.exhausted),
        steps=args.steps,
        global_batch=args.global_batch,
    )
    if not args.json:
        return str(counted)
    totals = {"rows": counted.rows, "tokens": counted.tokens}
    return json.dumps({**dataclasses.asdict(counted), **totals}, indent=2)


def _name(path: str | Path) -> str:
    return path.resolve().name if isinstance(path, Path) else PurePosixPath(path).name


def _named(given: str) -> tuple[str, str]:
    name, equals, value = given.partition("=")
    if not (name and equals and value):
        raise ValueError(f"a name must have a value: got {given!r}. Write NAME=VALUE.")
    return name, value


def _number(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ValueError(
            f"a weight must be a number: got {name}={value}. Write {name}=0.5."
        ) from None
