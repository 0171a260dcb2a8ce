# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Print a script that completes commands and options in bash, zsh or fish.

bash, in ~/.bashrc:   eval "$(dovetail completion bash)"
zsh, once:            dovetail completion zsh > "${fpath[1]}/_dovetail"
fish, once:           dovetail completion fish > ~/.config/fish/completions/dovetail.fish

The script holds all names, so that a key press starts no Python. Print it again after an update.
"""

import argparse
import json

import shtab

from dovetail_stack import cli
from dovetail_stack._command import DONE, add_json
from dovetail_stack.parsing import Parser

SHELLS = ("bash", "zsh", "fish")
# Names of arguments, as typed in help texts, that are files or directories.
PATHS = ("A", "B", "DIR", "FILE", "MODEL", "PATH", "RUN")


def add(parser: Parser) -> None:
    """Declares the shell."""
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help="bash, zsh or fish")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Prints the script; returns the exit code."""
    text = script(cli.parser_of(cli.COMMANDS), shell=args.shell)
    print(json.dumps({"shell": args.shell, "script": text}) if args.json else text)
    return DONE


def script(parser: argparse.ArgumentParser, *, shell: str) -> str:
    """Returns the completion script of the parser of all commands for one of SHELLS."""
    _complete_values(parser)
    return shtab.complete(parser, shell=shell)


def _complete_values(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments that are files, and the families of models."""
    from dovetail_models.fresh.sizes import decoders

    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                _complete_values(command)
        elif action.metavar in PATHS:
            action.complete = shtab.FILE  # pyright: ignore[reportAttributeAccessIssue]  shtab's
        elif action.dest == "family":
            action.choices = decoders()
