# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Calls as DeepSeek writes them, several between two marks.

V3 and R1 write function, a separator, the name and a block of code with JSON; V3.1 the name, the
separator and JSON.
"""

from __future__ import annotations

from collections.abc import Collection

from dovetail_infer.server.formats.source import Source, Steps

_BEGINS, _ENDS = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_OPENS, _CLOSES, _SEPARATES = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
MARKS = (_BEGINS, _ENDS, _OPENS, _CLOSES, _SEPARATES)


def grammar(source: Source, names: Collection[str]) -> Steps[None]:
    """Reads content and calls."""
    while count := (yield from source.until("content", _BEGINS, _OPENS)):
        i = count
        if source.rest[:count].endswith(_BEGINS):
            i = yield from source.literal(count, _OPENS)
        if not (i and (yield from _call(source, i))):
            yield from source.take("content", count)
            continue
        yield from source.skip(_CLOSES)
        yield from source.skip(_ENDS)


def _call(source: Source, start: int) -> Steps[bool]:
    stop = yield from _line(source, start)
    behind = yield from source.literal(stop, _SEPARATES)
    if not behind:
        return False
    coded = False
    i = yield from source.literal(behind, "{")
    if not i:
        start = yield from source.space(behind)
        stop = yield from _line(source, start)
        i = yield from source.literal(stop, "```json")
        i = coded = (yield from source.literal(i, "{")) if i else 0
    name = source.rest[start:stop].strip()
    if not i or not name:
        return False
    yield from source.give("name", name)
    source.drop(i - 1)
    yield from source.arguments()
    if coded:
        yield from source.skip("```")
    return True


def _line(source: Source, i: int) -> Steps[int]:
    """Returns the first place from `i` on with the end of a line, or that may have a mark."""
    while (char := (yield from source.char(i))) and char not in "\n<":
        i += 1
    return i
