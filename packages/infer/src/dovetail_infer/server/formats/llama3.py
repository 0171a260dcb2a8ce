# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Calls as Llama 3 writes them: {"name": ..., "parameters": {...}}, perhaps behind a mark.

Without the mark an answer is a call if it begins with such an object, and the object has the name
of a tool on offer. Further calls follow behind a ";".
"""

from __future__ import annotations

from collections.abc import Collection

from dovetail_infer.server.formats.calls import call
from dovetail_infer.server.formats.source import Source, Steps

_MARK = "<|python_tag|>"
MARKS = (_MARK,)


def grammar(source: Source, names: Collection[str]) -> Steps[None]:
    """Reads content and calls."""
    reads = yield from call(source, 0, names)
    while True:
        while reads:
            separator = yield from source.literal(0, ";")
            reads = yield from call(source, separator, names)
        count = yield from source.until("content", _MARK)
        if not count:
            return
        reads = yield from call(source, count)
        if not reads:
            yield from source.take("content", count)
