# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Settings of a run, dataclasses or mappings: as JSON values, and as options of a command."""

import argparse
import dataclasses
import json
import math
import os
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from dovetail_runs.damaged import DamagedRun

S = TypeVar("S")
_DECLARED = ("choices", "metavar", "type", "action", "nargs", "const")  # in the metadata of a field


def to_json(settings: Any, *, place: str = "settings") -> dict[str, Any]:
    """Returns settings as JSON values. Tuples become lists, and paths strings.

    Args:
        settings: A dataclass, whose fields may be dataclasses (groups), or a mapping.
        place: Name of the values in messages.

    Raises:
        TypeError: A value has no form in JSON.
    """
    if not (_is_dataclass(settings) or isinstance(settings, Mapping)):
        raise TypeError(
            f"{place} must be a dataclass or a mapping, got {settings!r:.100} of type "
            f"{type(settings).__name__}: pass vars(settings), or {{}}"
        )
    return _json(settings, place)


def from_json(kind: type[S], values: Mapping[str, Any], *, place: str = "settings") -> S:
    """Returns the dataclass from the values of `to_json`.

    A field that `values` lacks has its default: an earlier version did not have it.

    Args:
        kind: The class of the settings.
        values: Values by name of the field.
        place: Name of the values in messages.

    Raises:
        DamagedRun: A field is unknown, has no default, or has a value of another type.
    """
    hints = typing.get_type_hints(kind)
    fields = dataclasses.fields(kind)  # pyright: ignore[reportArgumentType]
    if unknown := sorted(values.keys() - {f.name for f in fields if f.init}):
        raise DamagedRun(
            f"{place} must have the fields of {kind.__name__}, got {', '.join(unknown)}: read them "
            "with the version that wrote them"
        )
    made = {name: _value(hints[name], values[name], f"{place}.{name}") for name in values}
    try:
        return kind(**made)
    except (TypeError, ValueError) as error:
        raise DamagedRun(f"{place} must fit {kind.__name__}, got {error}") from error


def flat(values: Mapping[str, Any], *, prefix: str = "") -> dict[str, Any]:
    """Returns {"group.field": value} of JSON values."""
    rows: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            rows |= flat(value, prefix=f"{prefix}{name}.")
        else:
            rows[f"{prefix}{name}"] = value
    return rows


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Returns {"group.field": [before, after]} of JSON values that differ; None for a missing one.

    Args:
        before: Settings as JSON values.
        after: Settings as JSON values.
    """
    old, new = flat(before), flat(after)
    names = dict.fromkeys([*old, *new])
    return {
        name: [old.get(name), new.get(name)] for name in names if old.get(name) != new.get(name)
    }


def short(tables: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns flat tables with "field" for "group.field", where no other group has that field."""
    names = dict.fromkeys(name for table in tables for name in table)
    owners: dict[str, set[str]] = {}
    for name in names:
        owners.setdefault(name.rpartition(".")[2], set()).add(name)
    words = {n: s if len(owners[s := n.rpartition(".")[2]]) == 1 else n for n in names}
    return [{words[name]: value for name, value in table.items()} for table in tables]


def add_options(parser: argparse.ArgumentParser, kind: type) -> None:
    """Declares an option for each field of a class of settings: `--learning-rate` of learning_rate.

    A group of settings, a field that is a dataclass itself, is a group in the help. A field of type
    `bool` is a pair of options, `--shuffle` and `--no-shuffle`. The metadata of a field may have
    "help", a text, and arguments of argparse that replace those of its type: "choices", "metavar",
    "type", "action", "nargs" and "const". A help may end in the meaning of a default: "; 0: none".

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


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def is_group(hint: Any) -> bool:
    """Tests whether a field of this type is a group of settings."""
    return dataclasses.is_dataclass(hint) and isinstance(hint, type)


def _json(value: Any, place: str) -> Any:
    if _is_dataclass(value):
        fields = [f for f in dataclasses.fields(value) if f.init]  # the others follow from these
        return {f.name: _json(getattr(value, f.name), f"{place}.{f.name}") for f in fields}
    if isinstance(value, Mapping):
        if wrong := [key for key in value if not isinstance(key, str)]:
            raise TypeError(f"names in {place} must be strings, got {wrong[0]!r}: write str()")
        return {key: _json(item, f"{place}.{key}") for key, item in value.items()}
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, list | tuple):
        return [_json(item, f"{place}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError):
        raise TypeError(
            f"a setting must be a number, a string, a path, a list or a group of these, got "
            f"{place}={value!r:.100} of type {type(value).__name__}: write its name as a string"
        ) from None


def _value(hint: Any, value: Any, place: str) -> Any:
    """Restores what JSON lacks: tuples, paths, groups, floats without a fraction."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        kinds = [a for a in args if a is not type(None)]
        return _value(kinds[0], value, place) if len(kinds) == 1 else value
    if is_group(hint):
        if not isinstance(value, Mapping):
            raise DamagedRun(f"{place} must be a group of settings, got {value!r:.100}")
        return from_json(hint, value, place=place)
    if origin is tuple or hint is tuple:
        items = [a for a in args if a is not Ellipsis] or [Any]
        any_length = Ellipsis in args or not args
        if not isinstance(value, list) or not (any_length or len(value) == len(items)):
            raise DamagedRun(f"{place} must be a list for {hint}, got {value!r:.100}")
        pairs = zip(items * len(value) if any_length else items, value, strict=True)
        return tuple(_value(kind, item, f"{place}[{i}]") for i, (kind, item) in enumerate(pairs))
    if isinstance(hint, type) and issubclass(hint, Path) and isinstance(value, str):
        return hint(value)
    wanted = float if hint is float else None
    if wanted is float and (type(value) is int or value in ("nan", "inf", "-inf")):
        return float(value)
    if hint in (int, float, str, bool) and type(value) is not hint:
        raise DamagedRun(f"{place} must be of type {hint.__name__}, got {value!r:.100}")
    return value


def _declare(
    parser: argparse.ArgumentParser, kind: type, group: Any, owners: dict[str, str]
) -> None:
    for field, hint in fields_of(kind):
        if is_group(hint):
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
            help=help_of(field).replace("%", "%%"),
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


def help_of(field: Any, *, in_words: bool = True) -> str:
    """Returns the help of a field, with its default if it has one.

    Args:
        field: The field.
        in_words: Replace a default by its meaning: "; 0: no average" becomes " (no average)".
    """
    help, default = str(field.metadata.get("help", "")), field.default
    if default is dataclasses.MISSING:
        made = field.default_factory is not dataclasses.MISSING
        return help if made else f"{help} (needed)".strip()
    off = default is False and field.metadata.get("action") == "store_true"
    none = default is None or default == () or off
    shown = "none" if none else f"{default:g}" if isinstance(default, float) else str(default)
    text, named, meaning = help.partition(f"; {shown}: ")
    if named:
        return f"{text} ({meaning})" if in_words else help
    return help if none else f"{help} ({shown})".strip()


def _made(kind: type[S], values: Mapping[str, Any]) -> S:
    made: dict[str, Any] = {}
    for field, hint in fields_of(kind):
        if is_group(hint):
            made[field.name] = _made(hint, values)
        elif field.name in values:
            value = values[field.name]
            made[field.name] = tuple(value) if isinstance(value, list) else value
    return kind(**made)


def fields_of(kind: type) -> Iterator[tuple[Any, Any]]:
    """Yields the fields of a class of settings with their types."""
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        yield field, hints[field.name]
