# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Calls as Mistral writes them: [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...].

Newer models write [TOOL_CALLS]name[ARGS]{...} for each call, some with [CALL_ID]id in between, some
without [ARGS].
"""

from __future__ import annotations

from collections.abc import Collection

from dovetail_infer.server.formats.calls import call
from dovetail_infer.server.formats.source import Source, Steps

_MARK, _ID, _ARGUMENTS = MARKS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"


def grammar(source: Source, names: Collection[str]) -> Steps[None]:
    """Reads content and calls."""
    while count := (yield from source.until("content", _MARK)):
        opens = yield from source.literal(count, "[")
        reads = _list(source, opens) if opens else _named(source, count)
        if not (yield from reads):
            yield from source.take("content", count)


def _list(source: Source, i: int) -> Steps[bool]:
    if not (yield from call(source, i)):
        return False
    while i := (yield from source.literal(0, ",")):
        if not (yield from call(source, i)):
            break
    yield from source.skip("]")
    return True


def _named(source: Source, count: int) -> Steps[bool]:
    start = yield from source.space(count)
    stop = yield from _word(source, start)
    i = yield from source.literal(stop, _ID)
    if i:
        i = yield from _word(source, (yield from source.space(i)))
    behind = i or stop
    i = (yield from source.literal(behind, _ARGUMENTS)) or behind
    opens = yield from source.literal(i, "{")
    if stop == start or not opens:
        return False
    yield from source.give("name", source.rest[start:stop])
    source.drop(opens - 1)
    yield from source.arguments()
    return True


def _word(source: Source, i: int) -> Steps[int]:
    """Returns the place behind a name or an id."""
    while (char := (yield from source.char(i))) and (char.isalnum() or char in "_-."):
        i += 1
    return i
