# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The command `python -m dovetail_checkpoint`: inspect, diff, verify, convert.

Another command mounts `add_arguments` and `run`. Results go to standard output, everything else to
standard error; long work reports to a `Progress`.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from dovetail_checkpoint import _command
from dovetail_checkpoint._command import DONE, FAILED, REFUSED, Parser, add_json, answering
from dovetail_checkpoint.layout.rule_options import add_rule_options
from dovetail_checkpoint.paths.converting import convert, planned
from dovetail_checkpoint.paths.diff import diff
from dovetail_checkpoint.paths.metadata import inspect
from dovetail_checkpoint.paths.verifying import verify
from dovetail_checkpoint.proof.progress import Progress
from dovetail_checkpoint.proof.report import StepReport

_PATHS = "a step (RUN/10), a tree of one (RUN/10/model), or safetensors"
_FILE_BYTES = "most bytes of each safetensors file (5e9)"
_ITEM = "tree to read from a step that holds several"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the sub-commands; pass the parsed arguments to `run`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for declare in (_inspect, _diff, _verify, _convert):
        _command.add_action(actions, declare.__name__[1:], declare)


def run(args: argparse.Namespace, *, progress: Progress | None = None) -> int:
    """Runs the parsed command and returns its exit code. Raises the errors of the library."""
    return args.act(args, progress)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns an exit code (see --help)."""
    parser = Parser(
        prog="python -m dovetail_checkpoint",
        description="Look into checkpoints, compare, verify and convert them.",
    )
    add_arguments(parser)
    args = parser.parse(argv)
    with answering(args), _Line(sys.stderr, args.action) as line:
        args.code = run(args, progress=line)
    return args.code


class _Line:
    """A Progress on a terminal: one line, rewritten in place. Prints nothing elsewhere."""

    def __init__(self, stream: TextIO, title: str) -> None:
        self._stream = stream
        self._title = title
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

    def __call__(self, done_bytes: int, total_bytes: int) -> None:
        if done_bytes < total_bytes:
            self._show(f"{self._title}: {done_bytes / 1e9:.1f} of {total_bytes / 1e9:.1f} GB")
        else:
            self._show("")

    def _show(self, text: str) -> None:
        if text != self._shown and self._stream.isatty():
            self._stream.write("\r" + text.ljust(len(self._shown)) + ("" if text else "\r"))
            self._stream.flush()
            self._shown = text


def _inspect(parser: argparse.ArgumentParser) -> None:
    """Show a path's steps, trees, and leaves with shapes and digests. Reads no array."""
    parser.add_argument("path", type=Path, metavar="PATH", help=f"a run (RUN), {_PATHS}")
    parser.add_argument("--item", metavar="NAME", help="tree or object of a step to show (all)")
    add_json(parser)
    parser.set_defaults(act=_run_inspect)


def _diff(parser: argparse.ArgumentParser) -> None:
    """Compare two trees by their digests; arrays without digests are read."""
    parser.add_argument("a", type=Path, metavar="A", help=_PATHS)
    parser.add_argument("b", type=Path, metavar="B", help="as A")
    parser.add_argument("--item", metavar="NAME", help=_ITEM)
    add_json(parser)
    add_rule_options(parser)
    parser.set_defaults(act=_run_diff)


def _verify(parser: argparse.ArgumentParser) -> None:
    """Read everything and check it against digests and checksums. Changes nothing."""
    parser.add_argument(
        "path", type=Path, metavar="PATH", help="a run (RUN), a step (RUN/10), or safetensors"
    )
    add_json(parser)
    parser.set_defaults(act=_run_verify)


def _convert(parser: argparse.ArgumentParser) -> None:
    """Write a tree in another format or layout, with digests. Writes all of it or nothing.

    For orbax, the result passes through the host's memory. For safetensors it is streamed.
    """
    parser.add_argument("path", type=Path, metavar="PATH", help=_PATHS)
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="new directory to write to"
    )
    parser.add_argument(
        "--format",
        required=True,
        choices=("orbax", "safetensors"),
        help="format to write; orbax makes step 0 of a run",
    )
    parser.add_argument("--item", metavar="NAME", help=_ITEM)
    parser.add_argument("--file-bytes", type=int, metavar="N", help=_FILE_BYTES)
    parser.add_argument(
        "--dry-run", action="store_true", help="print the source of each leaf; write nothing"
    )
    add_json(parser)
    add_rule_options(parser)
    parser.set_defaults(act=_run_convert)


def _run_inspect(args: argparse.Namespace, progress: Progress | None) -> int:
    description = inspect(args.path, item=args.item)
    _print(description, dataclasses.asdict(description), args)
    return DONE


def _run_diff(args: argparse.Namespace, progress: Progress | None) -> int:
    difference = diff(args.a, args.b, item=args.item, rules=args.rules, progress=progress)
    _print(difference, {"same": difference.same, **dataclasses.asdict(difference)}, args)
    return DONE if difference.same else FAILED


def _run_verify(args: argparse.Namespace, progress: Progress | None) -> int:
    report = verify(args.path, progress=progress)
    document = {
        "checked": [dataclasses.asdict(step) for step in report.steps],
        "problems": [dataclasses.asdict(problem) for problem in report.problems],
    }
    _print("\n".join([*map(str, report.problems), *map(_lines, report.steps)]), document, args)
    return DONE if report.ok else REFUSED


def _lines(report: StepReport) -> str:
    if report.problems:
        return "\n  ".join([f"{report.path}: {report.verdict}", *map(str, report.problems)])
    return f"{report.path}: {report.verdict}"


def _run_convert(args: argparse.Namespace, progress: Progress | None) -> int:
    asked = {
        "format": args.format,
        "item": args.item,
        "rules": args.rules,
        "file_bytes": args.file_bytes,
    }
    if args.dry_run:
        plan = planned(args.path, **asked)
        document = {"leaves": str(plan).splitlines()[:-1], "read_bytes": plan.read_bytes}
        _print(plan, document, args)
        return DONE
    convert(args.path, args.out, **asked, progress=progress)
    if args.json:
        written = inspect(args.out)
        _print(written, dataclasses.asdict(written), args)
    return DONE


def _print(text: Any, document: Any, args: argparse.Namespace) -> None:
    print(json.dumps(document, indent=2, default=str) if args.json else text)
