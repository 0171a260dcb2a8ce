# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Say where the time and memory of a run or a program went; compare two.

PATH is a run of `dovetail train --profile FIRST:COUNT`, a trace or its folder. `dovetail profile
PATH` stands for show, and `dovetail profile -- COMMAND ...` for run. The other actions are those of
`python -m dovetail_profile`.
"""

import argparse
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

from dovetail_profile.command.cli import add_arguments
from dovetail_profile.command.cli import run as run_action
from dovetail_stack._command import DONE, add_action, add_json
from dovetail_stack.parsing import Parser
from dovetail_stack.profiling import PAGE

ROWS = 10  # of each table


def add(parser: Parser) -> None:
    """Declares the library's own actions, and show."""
    add_arguments(parser)
    (actions,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    add_action(actions, "show", _show).set_defaults(act=_print)
    parser.implied = lambda words: _implied(words, set(actions.choices))


def run(args: argparse.Namespace) -> int:
    """Runs the parsed action and returns the exit code."""
    return run_action(args)


def _implied(words: list[str], actions: set[str]) -> list[str]:
    """Returns the words with the action that a path, or a command after "--", stands for."""
    first, *others = words or [""]
    if first == "--" and others:
        return ["run", *_script(others)]
    return ["show", *words] if first not in actions and os.path.exists(first) else words


def _script(command: list[str]) -> list[str]:
    """Returns a command of Python without the interpreter, or with the path of its script."""
    if re.fullmatch(r"python[\d.]*", os.path.basename(command[0])):
        return command[1:]
    if not os.path.exists(command[0]):
        return [shutil.which(command[0]) or command[0], *command[1:]]
    return command


def _show(parser: argparse.ArgumentParser) -> None:
    """Show what to change first, the steps, the layers and the operations, and write a page."""
    parser.add_argument("path", metavar="PATH", help="a run, a trace or its folder")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help=f"the page ({PAGE} in PATH, or beside a file)"
    )
    add_json(parser)


def _print(args: argparse.Namespace) -> int:
    from dovetail_profile import read

    path = Path(args.path)
    page = args.out or (path if path.is_dir() else path.parent) / PAGE
    profile = read(path)
    tables: dict[str, Any] = {
        "suggestions": profile.suggestions(),
        "steps": profile.steps(),
        "scopes": profile.ops("scope"),
        "ops": profile.ops(),
    }
    profile.save(page)
    if args.json:
        rows = {name: json.loads(table.to_json()) for name, table in tables.items()}
        print(json.dumps({**rows, "warnings": profile.warnings, "page": str(page)}, indent=2))
        return DONE
    for name, table in tables.items():
        print(f"{name}\n{table.top(ROWS)}\n")
    print("\n".join([*profile.warnings, f"page: {page}"]))
    return DONE
