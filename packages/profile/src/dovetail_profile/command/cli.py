# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The command `python -m dovetail_profile`. Another command can mount `add_arguments` and `run`."""

import argparse
import contextlib
import dataclasses
import json
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dovetail_profile._command import DONE, FAILED, Parser, add_action, add_json, answering
from dovetail_profile.profile import Profile, read
from dovetail_profile.table import Table

_TOP = 20  # rows, if none is asked for


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the actions to `parser`. Pass the parsed arguments to `run`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, declare, act in (
        ("run", _run, _run_script),
        ("ops", _ops, _print_ops),
        ("steps", _steps, _print_steps),
        ("memory", _memory, _print_memory),
        ("report", _report, _write_report),
        ("diff", _diff, _print_diff),
        ("peaks", _peaks, _print_peaks),
    ):
        add_action(actions, name, declare).set_defaults(act=act)


def run(args: argparse.Namespace) -> int:
    """Runs the parsed action and returns the exit code. Raises the library's errors."""
    return args.act(args)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns an exit code, one of those in --help."""
    parser = Parser(
        prog="python -m dovetail_profile",
        description="Profile a JAX program, and ask where its time and memory went.",
    )
    add_arguments(parser)
    args = parser.parse(argv)
    with answering(args):
        args.code = run(args)
    return args.code


def _run(parser: Parser) -> None:
    """Run a script under capture, keep the trace, and print the dearest instructions.

    The script is unchanged: its arguments, its output and its exit code are its own. This command
    prints to standard error. The capture begins with the first computation. A script with its own
    jax.profiler trace runs without this one.
    """
    add = parser.add_argument
    add("--steps", type=_range, metavar="A:B", help="count these steps only, without B")
    add("--out", type=Path, metavar="DIR", help="a folder for the trace (profile-DATE-TIME)")
    add("-m", dest="module", action="store_true", help="SCRIPT is a module's name")
    add("script", nargs=argparse.PARSER, metavar="SCRIPT", help="a script, and its arguments")
    parser.words["keep"] = "--out"


def _ops(parser: argparse.ArgumentParser) -> None:
    """Show the time of devices by instruction, line of source, module path or category."""
    _add_trace(parser)
    groups = ("op", "source", "scope", "category")
    text = "instruction (op), line of source, module path (scope) or category"
    parser.add_argument("--by", choices=groups, default="op", help=text)
    _add_table(parser)


def _steps(parser: argparse.ArgumentParser) -> None:
    """Show the steps: the time of devices in computation, and the causes of the rest."""
    _add_trace(parser)
    _add_table(parser)


def _memory(parser: argparse.ArgumentParser) -> None:
    """Show the buffers of a program at its peak of memory."""
    _add_trace(parser)
    parser.add_argument("program", metavar="PROGRAM", help="its name, as ops prints it")
    _add_table(parser)


def _report(parser: argparse.ArgumentParser) -> None:
    """Write all tables and pictures as one page that opens offline."""
    _add_trace(parser)
    text = "page.html, or tables as .json"
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help=text)
    add_json(parser)


def _diff(parser: argparse.ArgumentParser) -> None:
    """Show the changes of time from one trace to another of the same program."""
    add = parser.add_argument
    add("before", metavar="A", help="the trace before")
    add("after", metavar="B", help="the trace after")
    add("--fail-over", type=_percent, metavar="P%", help="exit with 1 if B is slower by more")
    _add_table(parser)


def _peaks(parser: argparse.ArgumentParser) -> None:
    """Measure the operations and bytes a second of this machine's device."""
    parser.add_argument("--out", type=Path, metavar="FILE", help="a file for Peaks.load")
    add_json(parser)


def _add_trace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", help="a trace: its folder or *.xplane.pb file")


def _add_table(parser: argparse.ArgumentParser) -> None:
    text = f"rows ({_TOP}); 0: all"
    parser.add_argument("--top", type=_count, default=_TOP, metavar="N", help=text)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object")
    form.add_argument("--csv", action="store_true", help="print comma-separated values")


def _range(text: str) -> range:
    match = re.fullmatch(r"(\d+):(\d+)", text)
    if not match or int(match[1]) >= int(match[2]):
        raise argparse.ArgumentTypeError(f"must be like 10:15, the first below the end, got {text}")
    return range(int(match[1]), int(match[2]))


def _percent(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)%", text)
    if not match:
        raise argparse.ArgumentTypeError(f"must be like 5%, got {text}")
    return float(match[1]) / 100


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a number of rows, got {text}")
    return int(text)


def _run_script(args: argparse.Namespace) -> int:
    from dovetail_profile.capture import capture, check_folder
    from dovetail_profile.command.script import run_script

    folder = args.out or Path(time.strftime("profile-%Y%m%d-%H%M%S"))
    name, *arguments = args.script
    if not args.module and not Path(name).exists():
        args.parser.error(f"SCRIPT must be a file, got {name}: correct it")
    check_folder(folder)
    captured: list[Profile] = []
    reason = "the script computed nothing with JAX"
    with contextlib.ExitStack() as stack:

        def start() -> None:
            nonlocal reason
            try:
                captured.append(stack.enter_context(capture(steps=args.steps, keep=folder)))
            except RuntimeError as error:  # the script traces itself, and goes on
                reason = str(error)

        code = run_script(name, arguments, module=args.module, start=start)
    lines = [f"no trace: {reason}"]
    for profile in captured:
        lines = [str(profile.ops().top(_TOP)), *profile.warnings, f"trace: {folder}"]
    print("\n".join(lines), file=sys.stderr)
    return code


def _print_ops(args: argparse.Namespace) -> int:
    profile = read(args.path)
    return _print(args, profile.ops(by=args.by), profile.warnings)


def _print_steps(args: argparse.Namespace) -> int:
    profile = read(args.path)
    return _print(args, profile.steps(), profile.warnings)


def _print_memory(args: argparse.Namespace) -> int:
    profile = read(args.path)
    try:
        memory = profile.memory(args.program)
    except KeyError as error:
        parser: Parser = args.parser
        parser.end(str(error.args[0]))
    return _print(args, memory.at_peak, profile.warnings, peak_bytes=memory.peak_bytes)


def _write_report(args: argparse.Namespace) -> int:
    read(args.path).save(args.out)
    text = json.dumps({"file": str(args.out)}, indent=2)
    print(text if args.json else f"written: {args.out}")
    return DONE


def _print_diff(args: argparse.Namespace) -> int:
    before, after = read(args.before), read(args.after)
    table = before.diff(after)
    slower = args.fail_over is not None and len(table.regressions(args.fail_over))
    _print(args, table, (), before_us=table.before_us, after_us=table.after_us)
    return FAILED if slower else DONE


def _print_peaks(args: argparse.Namespace) -> int:
    from dovetail_profile.peaks import measure_peaks

    peaks = measure_peaks()
    if args.out is not None:
        peaks.save(args.out)
    print(json.dumps(dataclasses.asdict(peaks), indent=2) if args.json else peaks)
    return DONE


def _print(
    args: argparse.Namespace, table: Table[Any], warnings: Sequence[str], **values: float | int
) -> int:
    """Prints a table as text, JSON or CSV. Without JSON, warnings go to stderr."""
    table = table.top(args.top) if args.top else table
    if args.json:
        content = {**values, "rows": json.loads(table.to_json()), "notes": table.notes}
        print(json.dumps({**content, "warnings": warnings}, indent=2))
        return DONE
    if args.csv:
        print(table.to_csv(), end="")
    else:
        print(table, *(f"{name} {value:,.0f}" for name, value in values.items()), sep="\n")
    for warning in warnings:
        print(warning, file=sys.stderr)
    return DONE
