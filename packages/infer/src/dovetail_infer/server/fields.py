# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`Fields`: the fields of a JSON object, each taken with its type; those left over are refused."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Collection, Mapping
from contextvars import ContextVar
from typing import Any

from dovetail_infer.server.errors import ApiError

_TYPES: dict[str, tuple[type, ...]] = {
    "a boolean": (bool,),
    "an integer": (int,),
    "a number": (int, float),
    "a string": (str,),
    "an array": (list,),
    "an object": (dict,),
}
# Unknown fields of a request are noted here; they are refused where it is None.
ignored: ContextVar[list[str] | None] = ContextVar("ignored", default=None)
_LONGEST = 200  # characters of a name in an error; clients may send a megabyte


class Fields:
    """Fields of an object of JSON. null is the same as an absent field.

    Args:
        values: The object.
        path: The field with it, for messages. "" for the whole body.
    """

    def __init__(self, values: Any, path: str = "") -> None:
        if not isinstance(values, dict):
            what = path or "the body"
            raise ApiError(
                f"{what} must be an object, got {shown(values)}; send {{...}}", param=path or None
            )
        self._values: dict[str, Any] = values
        self._path = f"{path}." if path else ""
        self._taken: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def name(self, name: str) -> str:
        """Returns the whole name of a field, as `stream_options.include_usage`."""
        return self._path + name

    def take(self, name: str, must: str, default: Any = None) -> Any:
        """Returns a field, or the default if it is absent or null.

        Args:
            name: The field.
            must: Its type, a key of the table above; or several, joined by " or ".
            default: For an absent field.
        """
        self._taken.add(name)
        value = self._values.get(name)
        if value is None:
            return default
        if type(value) not in _types(must):
            raise self.wrong(name, must, value)
        return value

    def items(self, name: str, must: str) -> list[Any]:
        """Returns the items of an array, each of one type; [] if it is absent.

        Args:
            name: The field.
            must: Type of each item.
        """
        values, types = self.take(name, "an array", []), _types(must)
        for i, value in enumerate(values):  # millions, in a large body
            if type(value) not in types:
                raise self.wrong(f"{name}[{i}]", must, value)
        return values

    def within(self, name: str, default: int, least: int, most: int) -> int:
        """Returns an integer in a range.

        Args:
            name: The field.
            default: For an absent field.
            least: Smallest value.
            most: Largest value.
        """
        value = self.take(name, "an integer", default)
        if not least <= value <= most:
            raise self.wrong(name, f"an integer from {least} to {most}", value)
        return value

    def only(self, name: str, allowed: Collection[Any], advice: str) -> None:
        """Takes a field with a value that changes nothing.

        Args:
            name: The field.
            allowed: Its neutral values; null always is one.
            advice: What to do instead of another value.
        """
        self._taken.add(name)
        value = self._values.get(name)
        if value is not None and not any(_same(value, other) for other in allowed):
            words = " or ".join([*map(shown, allowed), "absent"])
            raise ApiError(
                f"{self.name(name)} must be {words}, got {shown(value)}; {advice}",
                param=self.name(name),
                code="unsupported_parameter",
            )

    def wrong(self, name: str, must: str, value: Any) -> ApiError:
        """Returns the error of a field with a wrong value.

        Args:
            name: The field.
            must: What it must be.
            value: What came.
        """
        name = self.name(name)[:_LONGEST]
        return ApiError(
            f"{name} must be {must}, got {shown(value)}; correct it or leave it out", param=name
        )

    def end(self, known: Mapping[str, Any] | Collection[str] = ()) -> None:
        """Refuses the fields not taken so far, or notes them in `ignored`.

        Args:
            known: More names, for the nearest one in the message.
        """
        for name in self._values:
            if name in self._taken:
                continue
            if (names := ignored.get()) is not None:
                names.append(self.name(name)[:_LONGEST])
                continue
            near = difflib.get_close_matches(name[:_LONGEST], [*self._taken, *known], n=1)
            advice = f"write {near[0]}" if near else "leave it out"
            raise ApiError(
                f"{shown(self.name(name))} must be a field of this request, got an unknown one; "
                f"{advice}",
                param=self.name(name)[:_LONGEST],
                code="unknown_parameter",
            )


def shown(value: Any) -> str:
    """Returns a JSON value for a message, at most 60 characters of it."""
    words = {None: "null", True: "true", False: "false"}
    if value is None or isinstance(value, bool):
        return words[value]
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'an array'} of {len(value)}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


@functools.cache
def _types(must: str) -> frozenset[type]:
    """Returns the types of values of JSON by their names. A boolean is no integer."""
    return frozenset(kind for name in must.split(" or ") for kind in _TYPES[name])


def _same(value: Any, other: Any) -> bool:
    """Tests equality without `True == 1`."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)
