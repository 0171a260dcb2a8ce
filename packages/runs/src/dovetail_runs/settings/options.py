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
_DECLARED = ("choices", "metavar", "type", "action", "nargs", "const")  # in the metadata of a field


def add_options(parser: argparse.ArgumentParser, kind: type) -> None:
    """Declares an option for each field of a class of settings: `--learning-rate` of learning_rate.

    A group of settings, a field that is a dataclass itself, is a group in the help. A field of type
    `bool` is a pair of options, `--shuffle` and `--no-shuffle`. The metadata of a field may have
    "help", a text, and arguments of argparse that replace those of its type: "choices", "metavar",
    "type", "action", "nargs" and "const".

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
            help=_help(field),
            **arguments(field, hint),
        )


def arguments(field: Any, hint: Any) -> dict[str, Any]:
    """Returns the arguments of `add_argument` that follow from the type of a field.

    Those in its metadata replace them. An "action" there, such as "append", replaces all.

    Raises TypeError for a type without an option.
    """
    declared = {name: field.metadata[name] for name in _DECLARED if name in field.metadata}
    return declared if "action" in declared else _of_type(field.name, hint) | declared


def _of_type(name: str, hint: Any) -> dict[str, Any]:
    origin, items = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        kinds = [item for item in items if item is not type(None)]
        if len(kinds) == 1:
            return _of_type(name, kinds[0])
    if origin is typing.Literal:
        return {"choices": items, "type": type(items[0])}
    if origin is tuple and len(set(items) - {Ellipsis}) == 1:
        return {"nargs": "+" if Ellipsis in items else len(items), "type": items[0]}
    if hint is bool:
        return {"action": argparse.BooleanOptionalAction}
    if hint in (int, float, str, Path):
        return {"type": hint}
    raise TypeError(
        f"a setting must be a number, a string, a path, a tuple of one kind, a Literal or a group, "
        f"got {name}: {hint}: declare it without add_options"
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
