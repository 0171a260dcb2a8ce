# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The command `dovetail`: parses the arguments and runs one command in a `Frame`."""

import argparse
import contextlib
import importlib
import sys
from collections.abc import Collection, Sequence
from importlib import metadata
from typing import Any

from dovetail_stack._command import DONE, answering
from dovetail_stack.parsing import Parser

# Each is a module of `dovetail_stack.commands`, whose docstring begins with this line.
COMMANDS = {
    "quickstart": "Train a small language model in a few minutes, and report what it learned.",
    "train": "Train a model: from nothing, from another, from a teacher, or on records.",
    "runs": "List the training runs in a directory, show one, or compare several.",
    "profile": "Say where the time and memory of a run or a program went; compare two.",
    "generate": "Continue a prompt with a trained model, token by token, or a file of prompts.",
    "eval": "Measure a model: bits per byte, multiple choice, tasks of lm-evaluation-harness.",
    "quantize": "Quantize a decoder to 8 or 4 bits, with a report of what that saved and cost.",
    "models": "Look into a Hugging Face directory, rewrite it, or compare two.",
    "data": "Write, inspect and verify corpora; budget a run over them.",
    "bundle": "Export a model as a bundle; verify, inspect and precompile bundles.",
    "serve": "Serve a language model to clients of OpenAI's API, or a directory of bundles.",
    "checkpoint": "Look into checkpoints, compare, verify and convert them.",
    "completion": "Print a script that completes commands and options in bash, zsh or fish.",
    "doctor": "Compare what is installed with what was tested, list devices, say how to mend it.",
}


# Those that open the directory of a model with --allow and --ignore. `train` stores the two.
READERS = frozenset({"bundle", "eval", "generate", "models", "quantize"})


def module(name: str) -> Any:
    """Imports the module of a command. `add` declares arguments, `run` returns the exit code."""
    return importlib.import_module(f"dovetail_stack.commands.{name}")


def parser(argv: Sequence[str]) -> Parser:
    """Returns the parser of all commands. Only the first command in `argv` declares its arguments.

    Declaring them may import a library. A broken library must not stop the other commands.
    """
    selected = next((argument for argument in argv if argument in COMMANDS), None)
    return parser_of([selected] if selected else [])


def parser_of(selected: Collection[str]) -> Parser:
    """Returns the parser of all commands. Those in `selected` declare their arguments."""
    top = Parser(
        prog="dovetail",
        description="Train, sample and check language models with the Dovetail JAX stack.",
    )
    top.add_argument("--version", action="version", version=metadata.version("dovetail-stack"))
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, summary in COMMANDS.items():
        options: dict[str, Any] = {}
        if name in selected:
            options["description"] = module(name).__doc__
        command = commands.add_parser(name, help=summary, **options)
        if name in selected:
            module(name).add(command)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv:
        parser(argv).print_help()
        return DONE
    if argv[0] in ("help", "--help-all"):  # as git has it; the short help here is the whole one
        argv = [*argv[1:], "--help"]
    args = parser(argv).parse(argv)
    with answering(args), _accepting(args):
        args.code = module(args.command).run(args)
    return args.code


def _accepting(args: argparse.Namespace) -> contextlib.AbstractContextManager[None]:
    """Accepts the keys and tensors of --allow and --ignore in every directory that is opened."""
    options = {name: tuple(getattr(args, name, ())) for name in ("allow", "ignore")}
    if args.command not in READERS or not any(options.values()):
        return contextlib.nullcontext()
    from dovetail_models import accepting

    return accepting(**options)
