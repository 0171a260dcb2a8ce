# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The command `dovetail`: parses, runs one command, and turns what went wrong into one message."""

import argparse
import difflib
import logging
import os
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import NoReturn

from dovetail_stack.commands import (
    checkpoint,
    data,
    doctor,
    generate,
    models,
    quantize,
    quickstart,
    runs,
    train,
)

COMMANDS = {
    "quickstart": quickstart,
    "train": train,
    "runs": runs,
    "generate": generate,
    "quantize": quantize,
    "models": models,
    "data": data,
    "checkpoint": checkpoint,
    "doctor": doctor,
}
INTERRUPTED = 130  # what shells report for a program that SIGINT ended


def parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of every command. Only the one that `argv` names declares its own arguments.

    For that it may import a library, and another one's being broken must not stop it.
    """
    chosen = next((argument for argument in argv if argument in COMMANDS), None)
    top = argparse.ArgumentParser(
        prog="dovetail",
        description="Train, sample and check language models with the Dovetail JAX stack.",
    )
    top.add_argument("--version", action="version", version=metadata.version("dovetail-stack"))
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        summary = (module.__doc__ or "").splitlines()[0]
        command = commands.add_parser(
            name,
            help=summary,
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            argument_default=argparse.SUPPRESS,
            allow_abbrev=False,
        )
        command.add_argument("--debug", action="store_true", help="show where an error arose")
        if name == chosen:
            module.add(command)
        command.set_defaults(run=module.run, parser=command)
    return top


def _refuse(command: argparse.ArgumentParser, unknown: Sequence[str]) -> NoReturn:
    """Ends with usage, naming for each unknown option the nearest one that exists."""
    known = [option for action in command._actions for option in action.option_strings]
    named = []
    for option in unknown:
        near = difflib.get_close_matches(option, known, n=1) if option.startswith("-") else []
        named.append(f"{option} (did you mean {near[0]}?)" if near else option)
    command.error(f"unknown arguments: {' '.join(named)}; see {command.prog} --help")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code: 0 done, 1 error, 2 usage, 130 interrupted.

    A command that gives 1 another meaning sets `error_code` among its arguments. Commands find
    what was typed as `argv` among theirs.
    """
    argv = sys.argv[1:] if argv is None else argv
    args, unknown = parser(argv).parse_known_args(argv)
    if unknown:
        _refuse(args.parser, unknown)
    args.argv = list(argv)
    debug = getattr(args, "debug", False)
    logging.basicConfig(format="dovetail: %(levelname)s: %(message)s", level=logging.WARNING)
    if not debug:
        # Orbax logs the traceback of each read or write that fails, asyncio that of each task that
        # Orbax leaves behind; what is raised says it in one message.
        for noisy in ("absl", "asyncio"):
            logging.getLogger(noisy).setLevel(logging.CRITICAL)
    try:
        code = args.run(args)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt as stopped:
        print(f"\ndovetail: interrupted: {stopped}".rstrip(": "), file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # `... | head` has seen enough; nothing is left to be flushed at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return getattr(args, "error_code", 1)
    except (ValueError, ImportError, OSError, RuntimeError) as error:
        if debug:
            raise
        notes = getattr(error, "__notes__", ())
        print("\n".join((f"dovetail: error: {error}", *notes)), file=sys.stderr)
        line = f"dovetail: --debug shows where, as in: {args.parser.prog} --debug"
        print(line, file=sys.stderr)
        return getattr(args, "error_code", 1)
