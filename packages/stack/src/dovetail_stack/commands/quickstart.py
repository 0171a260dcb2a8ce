# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Train a small language model in a few minutes, and report what it learned.

The text is the Python standard library's own source, or any directory of text. Training is killed
half-way on purpose and resumes in a new process.
"""

import argparse
import contextlib
import json
import sys
from pathlib import Path

from dovetail_stack._command import add_json
from dovetail_stack.recipes.options import PATTERN_HELP, Duration, Files, check_local

STEPS = 600  # two and a half minutes on two cores; the same figures on a slower machine, later


def add(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("quickstart"),
        metavar="DIR",
        help="directory of the results (quickstart)",
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--steps", type=int, help=f"optimizer steps ({STEPS})")
    length.add_argument(
        "--minutes", type=float, metavar="MINUTES", help="minutes of training instead of steps"
    )
    parser.add_argument(
        "--text", type=Path, metavar="DIR", help="directory to train on (Python's library)"
    )
    parser.add_argument("--pattern", metavar="GLOB", help=PATTERN_HELP)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the quickstart and prints its figures."""
    from dovetail_stack.quickstart.run import quickstart, standard_library
    from dovetail_stack.recipes.text import check_directory

    check_local("out", args.out)
    if args.text is not None:
        check_directory(args.text)
        files = Files(text=str(args.text), pattern=args.pattern or "**/*")
    elif args.pattern is not None:
        raise ValueError(
            f"--pattern {args.pattern!r} chooses files below --text: pass --text DIR too"
        )
    else:
        files = standard_library()
    if args.minutes is None:
        duration = Duration(steps=STEPS if args.steps is None else args.steps)
    else:
        duration = Duration(minutes=args.minutes)
    with contextlib.redirect_stdout(sys.stderr) if args.json else contextlib.nullcontext():
        result = quickstart(files, args.out.resolve(), duration=duration)
    if args.json:
        print(json.dumps(result, indent=2))
        return 0
    print("\nBits per byte of the held-out files (lower is better):")
    print(f"  this model  {result['bits_per_byte']:.3f}")
    for name in ("gzip", "bzip2", "xz"):
        print(f"  {name:<10}  {result[f'{name}_bits_per_byte']:.3f}")
    print(f"\nReport: {args.out / 'report.html'}    figures: {args.out / 'result.json'}")
    return 0
