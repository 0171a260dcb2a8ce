# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""JSON objects in UTF-8, and the reasons why a line is none."""

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
    """Returns the object in `line`, or a `Corrupt`.

    Accepts NaN and infinities, as Python's json does.

    Corrupt are lines that are not UTF-8, not JSON or not an object; with a name twice in one
    object; nested beyond Python's stack; or with lone surrogates, which JSON escapes can spell and
    UTF-8 cannot.
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


def loads(text: str | bytes | None) -> Any:
    """Returns the value in the JSON text of a column; None for none.

    Raises:
        ValueError: `text` is no JSON, has a name twice in one object, or a lone surrogate.
    """
    if text is None:
        return None
    try:
        value = _DECODER.decode(text.decode("utf-8") if isinstance(text, bytes) else text)
    except (RecursionError, ValueError) as error:
        raise ValueError(f"{text[:40]!r} in a column of JSON: {error}") from error
    if lone := _lone_surrogate(value):
        raise ValueError(f"the lone surrogate {lone!a} in a column of JSON")
    return value


def _lone_surrogate(value: Any) -> str | None:
    """Returns the first lone surrogate in a JSON value. Not recursive: values may nest deeply."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str) and (match := _SURROGATE.search(item)):
            return match.group()
        if isinstance(item, dict):
            waiting += [*item.keys(), *item.values()]
        elif isinstance(item, list):
            waiting += item
    return None
