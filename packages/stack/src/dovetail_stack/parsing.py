# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The parser of `dovetail`: usage with what is needed, short and whole help, near names."""

import argparse
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from dovetail_stack import _command
from dovetail_stack._command import CHOICE, similar
from dovetail_stack.words import ANSWERS, MEANINGS

_WIDTH = 100  # the most columns of a help
_NUMBER = re.compile(r"-\.?\d")
_KINDS = {"int": "a whole number", "float": "a number"}
# Refusals of argparse, in the manner of ours.
_REWORDED = (
    (r"argument (\S+): invalid (?:\w+) value: '(.*)'", r"\1 must be KIND, got \1 \2: correct it"),
    (
        r"argument (\S+): (?:expected (?:at least )?(?:one argument|\d+ arguments?))",
        r"\1 must have a value, got none: type \1 WORD",
    ),
    (r"argument (\S+): ignored explicit argument '(.*)'", r"\1 takes no value, got \2: type \1"),
    (
        r"argument (\S+): not allowed with argument (\S+)",
        r"\1 and \2 exclude each other, got both: leave one out",
    ),
    (r"(?:the following arguments are|one of the arguments .* is) required.*", "NEEDED"),
    (r"argument (\S+): (.*)", r"\1: \2"),
)


class _Help(argparse.RawDescriptionHelpFormatter):
    """Lines of at most 100 columns; N stands for a whole number, X for another."""

    def __init__(self, prog: str, **options: Any) -> None:
        width = min(_WIDTH, shutil.get_terminal_size().columns - 2)
        super().__init__(prog, **{"width": width, **options})

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        known = {int: "N", float: "X"}
        default = super()._get_default_metavar_for_optional
        return known.get(action.type) or default(action)  # pyright: ignore[reportArgumentType]

    def word(self, action: argparse.Action) -> str:
        """Returns an argument as it is typed, with its value."""
        if action.option_strings:
            value = self._format_args(action, self._get_default_metavar_for_optional(action))
        else:
            value = self._format_args(action, self._get_default_metavar_for_positional(action))
        return " ".join([*action.option_strings[-1:], value]).strip()


class _HelpAll(argparse.Action):
    """Prints the whole help."""

    def __call__(self, parser: Any, *_: Any) -> None:
        print(parser.format_help(whole=True), end="")
        parser.exit()


class Parser(_command.Parser):
    """A parser that answers near names and the words of other programs.

    Attributes:
        needed: Options in the usage, beside those that argparse requires.
        at_end: Whether the help ends with the options of no group.
        implied: Returns the words that stand for those given, where a sub-command is left out.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": _Help, **options})
        self.needed: Sequence[str] = ()
        self.at_end = False
        self.implied: Callable[[list[str]], list[str]] = lambda words: words
        self._hidden: list[Any] = []
        self._given: list[str] = []

    def hide(self, group: Any) -> None:
        """Shows a group of arguments in --help-all alone."""
        if not self._hidden:
            self.add_argument(
                "--help-all", action=_HelpAll, nargs=0, help="show all options, and exit"
            )
        self._hidden.append(group)

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride]  of three forms
        self, args: Any = None, namespace: Any = None
    ) -> Any:
        """As argparse, and keeps the arguments for `error`."""
        self._given = self.implied(list(args or ()))
        return super().parse_known_args(self._given, namespace)

    def error(self, message: str) -> NoReturn:
        """Exits with an answer and code 2. An unknown option is named first."""
        choice = CHOICE.fullmatch(message)
        wrong = choice[2].strip("'") if choice and not choice[1].startswith("-") else None
        if unknown := list(self._unknown(before=wrong)):
            self.refuse(unknown)
        for pattern, ours in () if choice else _REWORDED:
            if match := re.fullmatch(pattern, message):
                self.end(self._filled(match.expand(ours), match))
        super().error(message)

    def format_usage(self) -> str:
        """Returns the line of what is needed."""
        if self.usage:
            return f"usage: {self.usage}\n"
        formatter = self._get_formatter()
        assert isinstance(formatter, _Help)
        words = [formatter.word(action) for action in self._required()]
        for group in self._mutually_exclusive_groups:
            if group.required:
                words.append(f"({' | '.join(map(formatter.word, group._group_actions))})")
        options = [] if self._subparsers else ["[options]"]
        return f"usage: {' '.join([self.prog, *words, *options])}\n"

    def format_help(self, *, whole: bool = False) -> str:
        """Returns the help. With `whole`, also the groups that are hidden."""
        formatter = self._get_formatter()
        formatter.add_text(self.format_usage())
        formatter.add_text(self.description)
        groups = sorted(self._action_groups, key=lambda g: self.at_end and g is self._optionals)
        for group in groups:
            if whole or group not in self._hidden:
                formatter.start_section(group.title)
                formatter.add_text(group.description)
                formatter.add_arguments(group._group_actions)
                formatter.end_section()
        if self._hidden and not whole:
            titles = ", ".join(group.title for group in self._hidden)
            formatter.add_text(f"{self.prog} --help-all shows also: {titles}")
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def _required(self) -> list[argparse.Action]:
        """Returns what must be typed: positional arguments, then options."""
        positional = [a for a in self._actions if not a.option_strings]
        options = [a for a in self._actions if a.option_strings and a.required]
        further = [self._option_string_actions[option] for option in self.needed]
        return [*positional, *options, *further]

    def _below(self) -> Mapping[str, Any]:
        """Returns the sub-parsers by their names."""
        choices = self._subparsers._group_actions[0].choices if self._subparsers else None
        return choices if isinstance(choices, Mapping) else {}

    def _unknown(self, *, before: str | None) -> Iterator[str]:
        """Yields the options that this parser was given and does not have, up to a word."""
        for word in self._given:
            if word in ("--", before, *self._below()):
                return
            is_option = word[:1] == "-" and word != "-" and " " not in word
            known = word.partition("=")[0] in self._option_string_actions
            if is_option and not known and not _NUMBER.match(word):
                yield word

    def answer(self, option: str) -> str:
        """Returns the answer to an unknown option."""
        if option in self._option_string_actions:  # it stood before this command
            return f"option {option} before it: type {self.prog} {option}"
        if below := [p.prog for p in self._below().values() if option in p._option_string_actions]:
            return f"option {option}: type it after {below[0]}"
        near = nearest(option, list(self._option_string_actions))
        advice = ANSWERS.get("--" + option.strip("-").replace("_", "-"), "leave it out")
        return f"option {option}: " + (f"did you mean {near}?" if near else advice)

    def advice(self, word: str, known: Sequence[str]) -> str:
        """Returns the end of a message about an unknown word."""
        own = f": {ANSWERS[word]}" if word in ANSWERS else ""
        return super().advice(word, known) or own

    def _filled(self, text: str, match: re.Match[str]) -> str:
        """Returns a reworded refusal, with the kind of a value and what is needed."""
        if text == "NEEDED":
            usage = self.format_usage().partition(": ")[2].strip()
            given = shlex.join(self._given) or "none"
            return f"{self.prog} needs more arguments, got {given}: type {usage}"
        formatter = self._get_formatter()
        assert isinstance(formatter, _Help)
        action = self._option_string_actions.get(match[1])
        kind = getattr(action and action.type, "__name__", "")
        typed = formatter.word(action) if action else match[1]
        word = typed.partition(" ")[2]
        return text.replace("KIND", _KINDS.get(kind, word)).replace(f"{match[1]} WORD", typed)


def nearest(option: str, known: Sequence[str]) -> str | None:
    """Returns the known option of the same meaning, or of similar spelling, or None."""
    name = option.strip("-").replace("_", "-").lower()
    if f"--{name}" in known:
        return f"--{name}"
    meant = [ours for ours, others in MEANINGS.items() if name in others.split()]
    near = similar(name, [other.strip("-") for other in known])
    return next((o for o in (*meant, f"--{near}") if o in known), None)
