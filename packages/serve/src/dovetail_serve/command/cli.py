# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The command `python -m dovetail_serve`: verify, inspect, precompile, serve.

Another command can mount `add_arguments` and `run`. Results go to standard output, all else to
standard error.
"""

import argparse
from collections.abc import Sequence

from dovetail_serve._command import Parser, add_action, answering
from dovetail_serve.command import inspect as _cli_inspect
from dovetail_serve.command import precompile as _cli_precompile
from dovetail_serve.command import serve as _cli_serve
from dovetail_serve.command import verify as _cli_verify

__all__ = ["ACTIONS", "add_arguments", "main", "run"]

# Modules with `declare(parser)` and `run(args) -> (exit code, output)`, by action.
ACTIONS = {
    "verify": _cli_verify,
    "inspect": _cli_inspect,
    "precompile": _cli_precompile,
    "serve": _cli_serve,
}


def add_arguments(
    parser: argparse.ArgumentParser, *, actions: Sequence[str] = tuple(ACTIONS)
) -> None:
    """Adds the actions to `parser`. Pass the parsed arguments to `run`.

    Args:
        parser: The parser of a command.
        actions: Names of the actions to add.
    """
    added = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name in actions:
        action = add_action(added, name, ACTIONS[name].declare)
        action.words.update(ACTIONS[name].WORDS)
        action.set_defaults(act=ACTIONS[name].run)


def run(args: argparse.Namespace) -> int:
    """Runs the parsed action and returns the exit code. Raises the library's errors."""
    code, output = args.act(args)
    if output:
        print(output)
    return code


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns an exit code, one of those in --help."""
    parser = Parser(
        prog="python -m dovetail_serve",
        description="Verify, inspect and precompile bundles; serve a repository of them.",
    )
    add_arguments(parser)
    args = parser.parse(argv)
    with answering(args):
        args.code = run(args)
    return args.code
