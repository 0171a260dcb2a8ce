# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The frame of a command: its parser, its exit codes, and an answer of two lines to each error.

An error class of a library may have an attribute `exit_code`; see `exit_code_of` for others. Python
arguments in a message (`vocab_size=9`) are replaced by the options of the command.

Kept verbatim in several packages: edit scripts/shared, then run scripts/copies.py.
"""

import argparse
import contextlib
import difflib
import json
import logging
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from inspect import cleandoc
from typing import Any, NoReturn

DONE, FAILED, USAGE, REFUSED, INTERRUPTED = 0, 1, 2, 3, 130

EXIT_CODES = """exit codes:
  0    done
  1    failed, or two things that were compared differ
  2    the command line is wrong: an option, a value or a path
  3    data are damaged or refused
  130  interrupted"""

CHOICE = re.compile(r"argument (\S+): invalid choice: (.*) \(choose from (.*)\)")
_PATHS = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class Refusal(SystemExit):
    """The end of a command line that is wrong, with the message that was printed."""

    def __init__(self, message: str) -> None:
        super().__init__(USAGE)
        self.message = message


class Parser(argparse.ArgumentParser):
    """A parser with exit codes in its help, and an answer of two lines to a wrong command line.

    Its sub-parsers are of this class too. Each takes --debug. After parsing, the attribute `parser`
    of the arguments is the selected sub-parser.

    Attributes:
        words: Options by name of a Python argument, where the two names differ.
    """

    def __init__(self, **options: Any) -> None:
        form = argparse.RawDescriptionHelpFormatter
        defaults = {"epilog": EXIT_CODES, "formatter_class": form, "allow_abbrev": False}
        super().__init__(**{**defaults, **options})
        self.words: dict[str, str] = {}
        self.set_defaults(parser=self)
        # Without a default, so that it may stand before a sub-command too.
        self.add_argument(
            "--debug", action="store_true", default=argparse.SUPPRESS, help="show where errors rise"
        )

    @property
    def prefix(self) -> str:
        """The beginning of messages: the name of the command, empty for a module of Python."""
        return "" if self.prog.startswith("python ") else f"{self.prog.partition(' ')[0]}: "

    def parse(self, argv: Sequence[str] | None) -> argparse.Namespace:
        """Parses `argv`; None: sys.argv. Exits with an answer and code 2 if it is wrong."""
        argv = sys.argv[1:] if argv is None else list(argv)
        try:
            args, unknown = self.parse_known_args(argv)
            if unknown:
                args.parser.refuse(unknown)
        except Refusal as refusal:
            _print_object(argv, refusal.message, USAGE)
            raise
        args.argv = argv
        return args

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """Exits with code 2, and answers each unknown option by the nearest one."""
        options = [word.partition("=")[0] for word in unknown if word[:1] == "-"]
        answers = "; no ".join(map(self.answer, options)) or f"{unknown[0]}: leave it out"
        self.end(f"{self.prog} has no {answers}")

    def error(self, message: str) -> NoReturn:
        """Exits with an answer and code 2."""
        if choice := CHOICE.fullmatch(message):
            name, word, choices = choice[1], choice[2].strip("'"), choice[3].replace("'", "")
            got = word if name[:1] != "-" else f"{name} {word}"
            advice = self.advice(word, choices.split(", "))
            message = f"{name} must be one of {choices}, got {got}{advice}"
        self.end(message)

    def end(self, message: str) -> NoReturn:
        """Prints the answer to a wrong command line and exits with code 2."""
        raise Refusal(self.say(printable(message)))

    def say(self, message: str) -> str:
        """Prints the answer to an error, and where help is. Returns the message."""
        print(f"{self.prefix}error: {message}", file=sys.stderr)
        print(f"{self.prefix}help: {self.prog} --help", file=sys.stderr)
        return message

    def advice(self, word: str, known: Sequence[str]) -> str:
        """Returns the end of a message about an unknown word."""
        near = similar(word, known)
        return f": did you mean {near}?" if near else ""

    def answer(self, option: str) -> str:
        """Returns the answer to an unknown option."""
        near = similar(option.strip("-"), [o.strip("-") for o in self._option_string_actions])
        return f"option {option}: " + (f"did you mean --{near}?" if near else "leave it out")

    def as_typed(self, message: str) -> str:
        """Returns `message` with options for Python arguments, and without control characters.

        If `name` is an argument of the command, `name=value` becomes `--name value`; `name=`, a
        sentence of `name must` and a name with an underscore become `--name`. Several values
        follow one another: `name=(1, 8)` becomes `--name 1 8`.
        """
        words = {action.dest: _word(action) for action in self._actions} | self.words

        def typed(match: re.Match[str]) -> str:
            (name, end), after = match.groups(), message[match.end() :]
            word, before = words[name], message[: match.start()]
            begins = after.startswith(" must ") and re.search(r"(^|[.:;] )$", before)
            if not word or (not end and (word[0] != "-" or not ("_" in name or begins))):
                return match[0]
            has_value = end == "=" and re.match(r"[^\s,;)]", after)
            return f"no {word}" if end == "=None" else f"{word} " if has_value else word

        names = "|".join(sorted(map(re.escape, words), key=len, reverse=True))
        ends = r"(=None\b|=|(?= must )|(?![\w=.(-]))"
        text = re.sub(rf"(?<![\w.'\"/-])({names}){ends}", typed, message)
        for action in self._actions:
            repeated = isinstance(action, argparse._AppendAction)
            if words[action.dest][:1] == "-" and (repeated or action.nargs in ("+", "*")):
                text = _listed(text, words[action.dest], repeated)
        return "\n".join(map(printable, text.split("\n")))


def similar(word: str, known: Sequence[str]) -> str | None:
    """Returns the name that begins alike and differs in little, or that the word begins."""
    alike = [name for name in known if name[:1] == word[:1]]
    near = difflib.get_close_matches(word, alike, n=1, cutoff=0.75)  # `shwo` and `show`
    begun = [name for name in alike if len(word) > 1 and name.startswith(word)]
    return next(iter(near + begun), None)


def _word(action: argparse.Action) -> str:
    """Returns an option, or the word of another argument in the usage."""
    word = [action.metavar, *action.option_strings][-1]
    return word if isinstance(word, str) and action.nargs != argparse.PARSER else ""


def _listed(message: str, option: str, repeated: bool) -> str:
    """Returns `message` with the values of a Python sequence after `option`, as typed."""

    def typed(match: re.Match[str]) -> str:
        values = re.findall(r"""'[^']*'|"[^"]*"|[^,\s]+""", match[1])
        between = f" {option} " if repeated else " "
        return f"{option} " + between.join(shlex.quote(value.strip("'\"")) for value in values)

    return re.sub(rf"(?<![\w-]){option} [\[(]([^][(){{}}]+)[\])]", typed, message)


def printable(text: str) -> str:
    """Returns `text` with symbols for control characters: a file's name then forges no line."""
    symbols = {c: f"⟨U+{ord(c):04X}⟩" for c in set(text) if not c.isprintable()}
    symbols |= {c: chr(0x2400 + ord(c)) for c in symbols if c < " "}
    return text.translate(str.maketrans(symbols | {"\x7f": "\u2421"}))


def exit_code_of(error: BaseException) -> int:
    """Returns the exit code of an error: its own, 2 for a wrong value or path, or else 1.

    A `ValueError`, and an error of a path without a number of the system, are about an argument.
    """
    typed = isinstance(error, (*_PATHS, FileExistsError)) and error.errno is None
    of_data = isinstance(error, UnicodeError | json.JSONDecodeError)
    wrong = typed or (isinstance(error, ValueError) and not of_data)
    return getattr(error, "exit_code", USAGE if wrong else FAILED)


def add_action(actions: Any, name: str, declare: Callable[[Any], None]) -> Parser:
    """Adds a sub-command and returns its parser. Its help is the docstring of `declare`.

    Args:
        actions: The result of `Parser.add_subparsers`.
        name: Name of the sub-command, as typed.
        declare: Receives the sub-parser and adds its arguments.
    """
    description = cleandoc(declare.__doc__ or "")
    action = actions.add_parser(name, help=description.splitlines()[0], description=description)
    declare(action)
    return action


def add_json(parser: argparse.ArgumentParser) -> None:
    """Declares --json."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


@contextlib.contextmanager
def answering(args: argparse.Namespace) -> Iterator[None]:
    """Runs a parsed command: an error becomes an answer, and `args.code` the exit code.

    With --debug the error is raised. With --json the answer is an object on standard output too.
    """
    args.code = DONE
    logging.basicConfig(format=f"{args.parser.prefix}%(levelname)s: %(message)s")
    if "debug" not in args:
        # Orbax logs the traceback of each failed read or write, asyncio one for each task left
        # behind by Orbax. The raised error has it all in one message.
        for noisy in ("absl", "asyncio"):
            logging.getLogger(noisy).setLevel(logging.CRITICAL)
    try:
        yield
        sys.stdout.flush()
        return
    except BrokenPipeError:  # `... | head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing left to flush
        args.code = FAILED
        return
    except Refusal as refusal:
        _print_object(args.argv, refusal.message, USAGE)
        raise
    except KeyboardInterrupt as error:
        message, args.code = f"interrupted: {error}".rstrip(": "), INTERRUPTED
        print(f"\n{args.parser.prefix}{message}", file=sys.stderr)
    except Exception as error:
        if "debug" in args:
            raise
        is_typed = isinstance(error, _PATHS) and str(error.filename) in args.argv
        message, args.code = _answer(args.parser, error), exit_code_of(error)
        args.code = USAGE if is_typed else args.code
    _print_object(args.argv, message, args.code)


def _print_object(argv: Sequence[str], message: str, code: int) -> None:
    """Prints a failure as an object if --json was typed."""
    if "--json" in argv:
        print(json.dumps({"error": message, "exit_code": code}, indent=2))


def _answer(parser: Parser, error: Exception) -> str:
    """Prints the answer to an error and returns its message.

    A message has one line, except for a list: of damage, or indented, as code to type and
    tracebacks are.
    """
    if not isinstance(error, ValueError | ImportError | OSError | RuntimeError):
        message = printable(f"unexpected {type(error).__name__}: {error}".strip(": "))
        print(f"{parser.prefix}error: {message}", file=sys.stderr)
        print(f"{parser.prefix}--debug shows where: {parser.prog} --debug ...", file=sys.stderr)
        return message
    lines = "\n".join([str(error), *getattr(error, "__notes__", ())]).splitlines()
    is_list = exit_code_of(error) == REFUSED or any(line[:1].isspace() for line in lines)
    message = "\n".join(lines) if is_list else " ".join(filter(None, lines))
    if isinstance(error, _PATHS) and error.filename is not None:
        path = str(error.filename)
        message = f"a path must exist, got {path!r} ({error.strerror}): correct it"
    return parser.say(parser.as_typed(message))
