# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Options of a command for settings: one for each field of a dataclass."""

import argparse
import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

S = TypeVar("S")


def add_options(parser: argparse.ArgumentParser, kind: type) -> None:
    """Declares an option for each field of a class of settings: `--learning-rate` of learning_rate.

    A group of settings, a field that is a dataclass itself, is a group in the help. A field of type
    `bool` is a pair of options, `--shuffle` and `--no-shuffle`. The metadata of a field may have
    "help", a text, and "choices".

    Args:
        parser: The parser of the command.
        kind: A dataclass of numbers, strings, paths, tuples of these, and groups.

    Raises:
        TypeError: A field has another type.
        ValueError: Two groups have a field of the same name.

    Example:

        >>> import argparse
        >>> from dataclasses import dataclass
        >>> from dovetail_runs import add_options, from_options
        >>> @dataclass(frozen=True, kw_only=True)
        ... class Settings:
        ...     learning_rate: float = 3e-4
        >>> parser = argparse.ArgumentParser()
        >>> add_options(parser, Settings)
        >>> from_options(Settings, parser.parse_args(["--learning-rate", "1e-3"]))
        Settings(learning_rate=0.001)
    """
    _declare(parser, kind, parser, {})


def from_options(kind: type[S], args: argparse.Namespace) -> S:
    """Returns the settings of a parsed command line. Other options have defaults.

    Args:
        kind: The class, as for `add_options`.
        args: The parsed arguments.
    """
    return _made(kind, vars(args))


def _declare(
    parser: argparse.ArgumentParser, kind: type, group: Any, owners: dict[str, str]
) -> None:
    for field, hint in _fields(kind):
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            summary = (hint.__doc__ or "").partition("\n")[0]
            _declare(parser, hint, parser.add_argument_group(field.name, summary), owners)
            continue
        if field.name in owners:
            raise ValueError(
                f"options must have names of their own, got {field.name} in {owners[field.name]} "
                f"and in {kind.__name__}: rename one"
            )
        owners[field.name] = kind.__name__
        group.add_argument(
            f"--{field.name.replace('_', '-')}",
            dest=field.name,
            default=argparse.SUPPRESS,
            required=field.default is field.default_factory is dataclasses.MISSING,
            **_parsing(field, hint),
        )


def _parsing(field: Any, hint: Any) -> dict[str, Any]:
    """Returns the arguments of argparse for a field."""
    options: dict[str, Any] = {"help": _help(field)}
    if "choices" in field.metadata:
        options["choices"] = field.metadata["choices"]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        kinds = [a for a in arguments if a is not type(None)]
        if len(kinds) == 1:
            return options | {k: v for k, v in _parsing(field, kinds[0]).items() if k != "help"}
    if origin is typing.Literal:
        return options | {"choices": arguments, "type": type(arguments[0])}
    if origin is tuple and len(set(arguments) - {Ellipsis}) == 1:
        return (
            options
            | {"nargs": "+" if Ellipsis in arguments else len(arguments)}
            | {"type": arguments[0]}
        )
    if hint is bool:
        return options | {"action": argparse.BooleanOptionalAction}
    if hint in (int, float, str, Path):
        return options | {"type": hint}
    raise TypeError(
        f"a setting must be a number, a string, a path, a tuple of one kind, a Literal or a group, "
        f"got {field.name}: {hint}: declare it without add_options"
    )


def _help(field: Any) -> str:
    text = str(field.metadata.get("help", "")).replace("%", "%%")
    if field.default in (dataclasses.MISSING, None, ()):
        return text
    return f"{text} ({str(field.default).replace('%', '%%')})".strip()


def _made(kind: type[S], values: Mapping[str, Any]) -> S:
    made: dict[str, Any] = {}
    for field, hint in _fields(kind):
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            made[field.name] = _made(hint, values)
        elif field.name in values:
            value = values[field.name]
            made[field.name] = tuple(value) if isinstance(value, list) else value
    return kind(**made)


def _fields(kind: type) -> Iterator[tuple[Any, Any]]:
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        yield field, hints[field.name]
