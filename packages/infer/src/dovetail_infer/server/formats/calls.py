# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Calls that are objects of JSON: {"name": ..., "arguments": {...}}, keys in any order."""

from __future__ import annotations

import json
from collections.abc import Collection

from dovetail_infer.server.formats.source import Source, Steps

_ARGUMENTS = ("arguments", "parameters")


def call(source: Source, i: int, names: Collection[str] | None = None) -> Steps[bool]:
    """Reads a call, and all that its object holds behind the arguments.

    The call begins with the first character of its arguments, if its name came before.

    Args:
        source: It is consumed only if a call is there.
        i: The call's place.
        names: Names that make an object a call. None: any.

    Returns:
        Whether a call is there: an object with a name, and with an object as arguments.
    """
    name = arguments = None
    i = yield from source.literal(i, "{")
    while i:
        key, i = yield from _key(source, i)
        if not i or (key in _ARGUMENTS and (yield from source.char(i)) != "{"):
            return False
        if key in _ARGUMENTS and name is not None:
            yield from source.give("name", name)
            source.drop(i)
            yield from source.arguments()
            yield from _close(source)
            return True
        stop = yield from _value(source, i)
        if key in _ARGUMENTS:
            arguments = source.rest[i:stop]
        elif key == "name":
            name = _text(source.rest[i:stop])
        if not stop or name == "" or not (name is None or names is None or name in names):
            return False
        if name is not None and arguments is not None:
            yield from source.give("name", name)
            yield from source.give("arguments", arguments)
            source.drop(stop)
            yield from _close(source)
            return True
        i = yield from source.literal(stop, ",")
    return False


def _close(source: Source) -> Steps[None]:
    """Consumes the other members of an object and its closing bracket, as far as they are JSON."""
    stop = 0
    while i := (yield from source.literal(stop, ",")):
        _, i = yield from _key(source, i)
        stop = (yield from _value(source, i)) if i else 0
        if not stop:
            return
    source.drop((yield from source.literal(stop, "}")))


def _key(source: Source, i: int) -> Steps[tuple[str, int]]:
    """Returns the key of a member and the place of its value; 0 if it is none."""
    start = yield from source.space(i)
    stop = yield from _value(source, start)
    key = _text(source.rest[start:stop])
    i = yield from source.literal(stop, ":")
    return key, (yield from source.space(i)) if i and key else 0


def _value(source: Source, i: int) -> Steps[int]:
    """Returns the place behind a value of JSON; 0 if it is none, or has no end."""
    start, depth, quoted = i, 0, False
    while char := (yield from source.char(i)):
        ends = False
        if quoted:
            quoted = char != '"'
            ends = not quoted
            i += char == "\\"
        elif char == '"':
            quoted = True
        elif char in "{[":
            depth += 1
        elif char in "}]" and depth:
            depth -= 1
            ends = True
        elif not depth and (char in "}],:" or char.isspace()):
            return i if i > start else 0
        i += 1
        if ends and not depth:
            return i
    return 0


def _text(value: str) -> str:
    """Returns the text of a string of JSON; "" if it is none that a key or a name may be."""
    try:
        text = json.loads(value)
    except ValueError:
        return ""
    return text if isinstance(text, str) and text.isprintable() else ""
