# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Decodes JSON values into dataclasses by their annotations.

Knows str, int, float, bool, None, unions, `tuple[T, ...]`, `Mapping[str, T]` and dataclasses.
Unknown and missing keys are refused, and so is a value of another type; the message gives the path.
Texts that UTF-8 cannot hold and numbers that JSON cannot hold are refused too, so that every
decoded value can be written again.
"""

import dataclasses
import math
import reprlib
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")

# Values in messages are shortened, without a walk through the whole of a large or deep one.
_short = reprlib.Repr()
_short.maxstring = _short.maxother = 80


class DecodeError(ValueError):
    """A value unfit for its annotation. The message starts with the path of the value."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path or 'the document'} {reason}")
        self.depth = path.count(".") + bool(path)


def decode(kind: type[T], value: Any) -> T:
    """Returns `value` as a `kind`. Raises DecodeError."""
    return _decode(kind, value, "")


def shortened(value: Any) -> str:
    """Returns the representation of a value, cut to the length of a message."""
    text = _short.repr(value)
    return text if len(text) <= 160 else text[:160] + "..."


def at(path: str, name: str) -> str:
    """Returns the path of the entry `name` within `path`, without control characters."""
    shown = name if name.isprintable() and len(name) <= 200 else shortened(name)
    return f"{path}.{shown}" if path else shown


def _decode(kind: Any, value: Any, path: str) -> Any:
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _union(typing.get_args(kind), value, path)
    if origin is tuple:
        if not isinstance(value, list):
            raise _mismatch(path, "a list", value)
        item_kind = typing.get_args(kind)[0]
        return tuple(_decode(item_kind, item, f"{path}.{i}") for i, item in enumerate(value))
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, dict):
            raise _mismatch(path, "an object", value)
        item_kind = typing.get_args(kind)[1]
        return {
            _text(key, path): _decode(item_kind, item, at(path, key)) for key, item in value.items()
        }
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, value, path)
    # JSON's true is an int to Python.
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise _mismatch(path, "null" if kind is type(None) else f"a {kind.__name__}", value)
    if kind is float and not math.isfinite(value):
        raise _mismatch(path, "finite", value)
    if isinstance(value, str):
        _text(value, path)
    return value


def _union(kinds: tuple[Any, ...], value: Any, path: str) -> Any:
    errors = []
    for kind in kinds:
        try:
            return _decode(kind, value, path)
        except DecodeError as error:
            errors.append(error)
    # The longest path is the reason inside of the only kind that nearly fits.
    raise max(errors, key=lambda error: error.depth)


def _dataclass(kind: Any, value: Any, path: str) -> Any:
    if not isinstance(value, dict):
        raise _mismatch(path, "an object", value)
    hints = typing.get_type_hints(kind)
    if unknown := sorted(value.keys() - hints.keys()):
        raise DecodeError(at(path, unknown[0]), "is not known")
    if missing := sorted(hints.keys() - value.keys()):
        raise DecodeError(at(path, missing[0]), "is missing")
    fields = {name: _decode(hint, value[name], at(path, name)) for name, hint in hints.items()}
    try:
        return kind(**fields)
    except (TypeError, ValueError) as error:
        raise DecodeError(path, f"is refused: {error}") from error


def _text(value: str, path: str) -> str:
    """Returns a text that UTF-8 can hold: JSON's escapes can write half of a surrogate pair."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _mismatch(path, "text that UTF-8 can hold", value) from error
    return value


def _mismatch(path: str, expected: str, value: Any) -> DecodeError:
    return DecodeError(path, f"must be {expected}, got {shortened(value)}")
