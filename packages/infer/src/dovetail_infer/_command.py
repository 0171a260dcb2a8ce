# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The frame of a command: its parser, its exit codes, and one message for each error.

An error class of a library may have an attribute `exit_code`; others exit with 1. Python arguments
in a message (`vocab_size=9`) are replaced by the options of the command.

This file is kept verbatim in several packages, since no package imports another. Edit it in
scripts/shared, then run scripts/copies.py.
"""

import argparse
import ast
import difflib
import logging
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from inspect import cleandoc
from types import TracebackType
from typing import Any, NoReturn

DONE, FAILED, USAGE, REFUSED, INTERRUPTED = 0, 1, 2, 3, 130

EXIT_CODES = """exit codes:
  0    done
  1    failed, or two things that were compared differ
  2    the command line is wrong
  3    data are damaged or refused
  130  interrupted"""

# Options that other programs have, and ours of the same meaning: the first that a command knows.
_MEANINGS = {
    "--batch": ("--global-batch",),
    "--batch-size": ("--global-batch",),
    "--bs": ("--global-batch",),
    "--context-length": ("--length",),
    "--data-dir": ("--text",),
    "--dataset": ("--text",),
    "--dim": ("--embed",),
    "--dtype": ("--precision",),
    "--epochs": ("--steps",),
    "--exclude": ("--skip", "--float"),
    "--file": ("--text",),
    "--grad-accum": ("--accumulate",),
    "--gradient-accumulation-steps": ("--accumulate",),
    "--group-size": ("--group",),
    "--head-dim": ("--heads",),
    "--hidden-size": ("--embed",),
    "--ignore": ("--skip", "--float"),
    "--input": ("--text",),
    "--iterations": ("--steps",),
    "--layers": ("--depth",),
    "--lr": ("--learning-rate",),
    "--max-length": ("--length",),
    "--max-new-tokens": ("--max-tokens",),
    "--max-steps": ("--steps",),
    "--n": ("--max-tokens",),
    "--num-epochs": ("--steps",),
    "--num-heads": ("--heads",),
    "--num-layers": ("--depth",),
    "--output": ("--out",),
    "--output-dir": ("--out",),
    "--rank": ("--lora-rank",),
    "--save-interval": ("--save-every",),
    "--seq-len": ("--length",),
    "--sequence-length": ("--length",),
    "--skip": ("--float",),
    "--traceback": ("--debug",),
    "--train-data": ("--text",),
    "--verbose": ("--debug",),
    "--width": ("--embed",),
}
_CHOICE = re.compile(r"invalid choice: '([^']*)'")
_SEQUENCE = r"""[\[(](?:'[^']*'|"[^"]*"|[^][(){}'"])+[\])]"""


class Parser(argparse.ArgumentParser):
    """A parser with exit codes in its help and near names in its refusals.

    Its sub-parsers are of this class too. Each takes --debug. After parsing, the attribute `parser`
    of the arguments is the selected sub-parser.

    Attributes:
        words: Options by name of a Python argument, where the two names differ.
    """

    def __init__(self, **options: Any) -> None:
        defaults = {
            "epilog": EXIT_CODES,
            "formatter_class": argparse.RawDescriptionHelpFormatter,
            "allow_abbrev": False,
        }
        super().__init__(**{**defaults, **options})
        self.words: dict[str, str] = {}
        self.set_defaults(parser=self)
        # Without a default, so that it may stand before a sub-command too.
        self.add_argument(
            "--debug", action="store_true", default=argparse.SUPPRESS, help="show where errors rise"
        )

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parses `argv`. Exits with usage and code 2 if it is wrong."""
        args, unknown = self.parse_known_args(argv)
        if unknown:
            args.parser.refuse(unknown)
        args.argv = list(argv)
        return args

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """Exits with usage, and names the nearest known option for each unknown one."""
        known = [option for action in self._actions for option in action.option_strings]
        named = []
        for argument in unknown:
            near = nearest(argument.partition("=")[0], known) if argument[:1] == "-" else None
            named.append(f"{argument} (did you mean {near}?)" if near else argument)
        self.error(f"unknown arguments: {' '.join(named)}; see {self.prog} --help")

    def error(self, message: str) -> NoReturn:
        """Exits with usage and code 2. A misspelt choice is answered by the nearest one."""
        if wrong := _CHOICE.search(message):
            choices = [str(c) for action in self._actions for c in action.choices or ()]
            if near := difflib.get_close_matches(wrong.group(1), choices, n=1):
                message += f"; did you mean {near[0]}?"
        super().error(message)


def nearest(option: str, known: Sequence[str]) -> str | None:
    """Returns the known option of the same meaning, or of similar spelling, or None."""
    meant = [other for other in _MEANINGS.get(option, ()) if other in known]
    near = difflib.get_close_matches(option, known, n=1)
    return next(iter([*meant, *near]), None)


def add_action(actions: Any, name: str, declare: Callable[[Any], None], **options: Any) -> Parser:
    """Adds a sub-command. Its help is the docstring of `declare`.

    Args:
        actions: The result of `Parser.add_subparsers`.
        name: Name of the sub-command, as typed.
        declare: Receives the sub-parser and adds its arguments.
        options: Further options of the parser.

    Returns:
        The sub-parser.
    """
    description = cleandoc(declare.__doc__ or "")
    summary = description.splitlines()[0]
    action = actions.add_parser(name, help=summary, description=description, **options)
    declare(action)
    return action


def add_json(parser: argparse.ArgumentParser) -> None:
    """Declares --json."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


class Frame:
    """A context manager around one parsed command: an error becomes a message and an exit code.

    With --debug the error is raised.

    Args:
        args: The result of `Parser.parse`.
        name: Precedes the messages; empty for none.

    Attributes:
        code: The exit code. The body sets it; 130 after an interrupt, 1 after a reader has gone
            away, and after an error its `exit_code` or 1.
    """

    def __init__(self, args: argparse.Namespace, *, name: str) -> None:
        self.code = DONE
        self._args, self._prefix = args, f"{name}: " if name else ""

    def __enter__(self) -> "Frame":
        logging.basicConfig(format=f"{self._prefix}%(levelname)s: %(message)s")
        if "debug" not in self._args:
            # Orbax logs the traceback of each failed read or write, asyncio one for each task left
            # behind by Orbax. The raised error has it all in one message.
            for noisy in ("absl", "asyncio"):
                logging.getLogger(noisy).setLevel(logging.CRITICAL)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        try:
            sys.stdout.flush()
        except BrokenPipeError as broken:
            error = error or broken
        if error is None:
            return True
        if isinstance(error, KeyboardInterrupt):
            print(f"\n{self._prefix}interrupted: {error}".rstrip(": "), file=sys.stderr)
            self.code = INTERRUPTED
            return True
        if isinstance(error, BrokenPipeError):  # `... | head` has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing left to flush
            self.code = FAILED
            return True
        expected = isinstance(error, ValueError | ImportError | OSError | RuntimeError)
        if not expected or "debug" in self._args:
            return False
        parser, prefix = self._args.parser, self._prefix
        message = "\n".join([str(error), *getattr(error, "__notes__", ())])
        print(f"{prefix}error: {as_typed(message, parser)}", file=sys.stderr)
        print(f"{prefix}--debug shows where: {parser.prog} --debug ...", file=sys.stderr)
        self.code = getattr(error, "exit_code", FAILED)
        return True


def as_typed(message: str, parser: Parser) -> str:
    """Returns `message` with options for Python arguments, and without control characters.

    If `name` is an argument of the command, `name=value` becomes `--name value`; `name=`,
    `name must` and a name with an underscore become `--name`. An option of several values has them
    one after the other: `name=(1, 8)` becomes `--name 1 8`, or `--name 1 --name 8` for an option
    that is repeated.
    """
    known = dict(_typed(parser))
    known.update(parser.words)
    if known:
        names = "|".join(sorted(map(re.escape, known), key=len, reverse=True))
        message = re.sub(
            rf"(?<![\w.'\"/-])({names})(=None\b|=(?=[\w'\"\[({{.+-])|=|(?= must )|(?![\w=.(-]))",
            lambda match: _replaced(match, known),
            message,
        )
    several = [known[a.dest] for a in parser._actions if a.option_strings and a.nargs in ("+", "*")]
    repeated = [known[a.dest] for a in parser._actions if isinstance(a, argparse._AppendAction)]
    for option in (*several, *repeated):
        between = f" {option} " if option in repeated else " "
        listed = _listed(option, between)
        message = re.sub(rf"(?<![\w-]){option} ({_SEQUENCE})", listed, message)
    return "\n".join(map(printable, message.split("\n")))


def printable(text: str) -> str:
    """Returns `text` in one line with visible symbols for its control characters.

    Texts from elsewhere, such as names of files, then neither move the cursor nor forge lines.
    """
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def _replaced(match: re.Match[str], known: Mapping[str, str]) -> str:
    name, after = match.groups()
    option = known[name]
    if after == "=None":
        return f"no {option}"
    if after:
        following = match.string[match.end() : match.end() + 1]
        return (
            option if not following or following.isspace() or following in ",;)" else f"{option} "
        )
    begins = re.search(r"(^|[.:;] )$", match.string[: match.start()]) is not None
    subject = begins and match.string[match.end() :].startswith(" must ")
    return option if option[0] == "-" and (subject or "_" in name) else name


def _listed(option: str, between: str) -> Callable[[re.Match[str]], str]:
    """Returns a function of a match of `_SEQUENCE`: the option and its values, as typed."""

    def listed(match: re.Match[str]) -> str:
        try:
            values = ast.literal_eval(match[1])
        except (SyntaxError, ValueError):  # a text in brackets, or one that is cut short
            return match[0]
        if not isinstance(values, tuple | list):
            return match[0]
        texts = ("..." if value is ... else shlex.quote(str(value)) for value in values)
        return f"{option} {between.join(texts)}"

    return listed


def _typed(parser: Parser) -> list[tuple[str, str]]:
    """Returns (name of the Python argument, option) of each argument."""
    typed = []
    for action in parser._actions:
        if action.option_strings:
            typed.append((action.dest, action.option_strings[-1]))
        elif isinstance(action.metavar, str) and action.nargs != argparse.PARSER:
            typed.append((action.dest, action.metavar))
    return typed


def _escaped(char: str) -> str:
    """Returns a visible symbol for a control character."""
    code = ord(char)
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else f"⟨U+{code:04X}⟩"
