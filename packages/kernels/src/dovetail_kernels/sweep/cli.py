# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The command `python -m dovetail_kernels`: tune, show."""

import argparse
import functools
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from dovetail_kernels._command import DONE, FAILED, Parser, add_action, add_json, answering
from dovetail_kernels.measured import RecordedCall, TunedCall, Tuning, read_tuning, record_calls
from dovetail_kernels.sweep.examples import OPERATIONS, read_calls
from dovetail_kernels.sweep.tune import tune

_ARRAY = re.compile(r"(\w+)\[([\d,]+)\]")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns an exit code, one of those in --help."""
    parser = Parser(
        prog="python -m dovetail_kernels",
        description="Measure the implementations of operations on this device, for its programs.",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, declare, act in (("tune", _tune, _measure), ("show", _show, _read)):
        action = add_action(actions, name, declare)
        add_json(action)
        action.set_defaults(act=act)
    args = parser.parse(argv)
    with answering(args):
        args.code = args.act(args)
    return args.code


def _tune(parser: argparse.ArgumentParser) -> None:
    """Time every implementation of some calls, and keep the winners in a file.

    The calls are those of a file that `record_calls` wrote, or one in the words of JAX:

        tune attention 'q=float32[1,64,2,16]' 'k=float32[1,64,2,16]' 'v=float32[1,64,2,16]'
            causal=true --out tuned.json

    A program reads the file by DOVETAIL_KERNELS_TUNING=tuned.json.
    """
    parser.add_argument(
        "words", nargs="*", metavar="OPERATION NAME=VALUE", help="one call: arrays and options"
    )
    parser.add_argument("--calls", type=Path, metavar="FILE", help="calls of record_calls")
    parser.add_argument("--out", type=Path, metavar="FILE", required=True, help="the tuning file")
    parser.add_argument(
        "--budget-s", type=float, default=600.0, help="seconds until the last call begins (600)"
    )


def _show(parser: argparse.ArgumentParser) -> None:
    """Print a tuning file: the winner of each call, its time and the next."""
    parser.add_argument("file", type=Path, metavar="FILE", help="a tuning file")


def _measure(args: argparse.Namespace) -> int:
    if bool(args.words) == bool(args.calls):
        raise ValueError(
            "tune needs one call as words, or calls=FILE, got "
            f"{'both' if args.words else 'neither'}. Use calls=FILE of record_calls."
        )
    calls = read_calls(args.calls) if args.calls else _typed(*args.words)
    tuned = tune(calls, out=args.out, budget_s=args.budget_s, progress=_say)
    _print(tuned, args)
    return FAILED if any(row.default in row.excluded for row in tuned.rows) else DONE


def _read(args: argparse.Namespace) -> int:
    _print(read_tuning(args.file), args)
    return DONE


def _say(row: TunedCall) -> None:
    print(f"{row.operation}: {row.implementation}, {row.reason}", file=sys.stderr)


def _print(tuned: Tuning, args: argparse.Namespace) -> None:
    print(json.dumps(tuned.json(), indent=2) if args.json else tuned)


def _typed(operation: str, *words: str) -> list[RecordedCall]:
    """Returns the call that is typed as "attention q=float32[1,64,2,16] ... causal=true"."""
    if operation not in OPERATIONS:
        raise ValueError(
            f"OPERATION must be one of {', '.join(OPERATIONS)}, got {operation}. An operation with "
            "one implementation needs no tuning."
        )
    try:
        arrays, options = _arguments(words)
        with record_calls() as calls:
            call = functools.partial(OPERATIONS[operation], **options)
            jax.eval_shape(lambda arrays: jax.tree.leaves(call(**arrays)), arrays)
    except TypeError as error:  # of a name, a dtype, or an array that is missing
        raise ValueError(f"{error}. Type each as NAME=DTYPE[SIZES], or NAME=VALUE.") from error
    return calls


def _arguments(words: Sequence[str]) -> tuple[dict[str, jax.ShapeDtypeStruct], dict[str, Any]]:
    """Returns the arrays and the options of a typed call, by name."""
    arrays, options = {}, {}
    for word in words:
        name, _, value = word.partition("=")
        array = _ARRAY.fullmatch(value)
        if array is not None:
            arrays[name] = jax.ShapeDtypeStruct(map(int, array[2].split(",")), array[1])
        else:
            options[name] = _value(value)
    return arrays, options


def _value(word: str) -> Any:
    """Returns a number, true, false, null or a list as JSON has them, else the word itself."""
    try:
        return json.loads(word)
    except ValueError:
        return word
