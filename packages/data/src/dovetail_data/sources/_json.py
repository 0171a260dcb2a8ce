# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A JSON object in UTF-8, or what is wrong with it."""

import collections
import json
import re
from typing import Any

from dovetail_data.sources.source import Corrupt, Record

_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_KINDS = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        counts = collections.Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise ValueError(f"the name {twice!a} more than once in one object")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_unique)  # json.loads would make one per line


def parse(line: bytes) -> Record | Corrupt:
    """The object that `line` is. NaN and infinities are taken, as Python's json writes them.

    Corrupt for what is not UTF-8, not JSON or not an object, for a name that occurs twice in one
    object, for nesting beyond Python's stack, and for lone surrogates anywhere, which JSON escapes
    can spell and UTF-8 cannot.
    """
    try:
        value = _DECODER.decode(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return Corrupt(
            f"a record must be UTF-8: got byte 0x{line[error.start]:02x} at its byte "
            f"{error.start}. Convert the file, or delete the record."
        )
    except RecursionError:
        return Corrupt(
            "a record must not nest deeper than Python's parser takes: got more levels. "
            "Flatten the record or delete it."
        )
    except ValueError as error:
        return Corrupt(f"a record must be JSON: got {error}. Mend the record or delete it.")
    if not isinstance(value, dict):
        return Corrupt(
            f"a record must be a JSON object: got {_KINDS.get(type(value), 'a number')}. "
            'Write each as an object with names, such as {"text": "..."}.'
        )
    if _ESCAPED_SURROGATE.search(line) and (lone := _lone_surrogate(value)):
        return Corrupt(
            f"a record must be Unicode without lone surrogates: got {lone!a}. "
            "Mend its \\ud800-\\udfff escapes or delete it."
        )
    return value


def _lone_surrogate(value: Any) -> str | None:
    """The first lone surrogate in the strings of a JSON value; not recursive, as depth is free."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str) and (match := _SURROGATE.search(one)):
            return match.group()
        if isinstance(one, dict):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, list):
            waiting += one
    return None
