# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Channels of gpt-oss: analysis is reasoning, commentary to a function is a call, final is content.

An answer is messages of the form <|start|>assistant<|channel|>NAME<|message|>TEXT<|end|>; the first
has its start in the prompt. A call has to=functions.NAME before or behind its channel.
Reference: cookbook.openai.com/articles/openai-harmony.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from dovetail_infer.server.formats.source import Kind, Source, Steps

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
MARKS = (_START, _CHANNEL, _MESSAGE, "<|constrain|>", *_ENDS)
_CALL = re.compile(r"to=functions\.([\w.-]+)")
_REASONING = re.compile(re.escape(_CHANNEL) + r"\s*analysis\b")


def grammar(source: Source, names: Collection[str], *, thinks: bool = True) -> Steps[None]:
    """Reads content, reasoning and calls.

    Args:
        source: The answer behind the start of its first message.
        names: Tools on offer. Without any, a call is content.
        thinks: Tell reasoning from content.
    """
    kind: Kind = "content"
    begins = yield from source.literal(0, "to=")
    while True:
        begins = begins or (yield from source.literal(0, _START))
        begins = begins or (yield from source.literal(0, _CHANNEL))
        stop = (yield from _header(source, begins)) if begins else 0
        if stop:
            header = source.rest[:stop]
            source.drop(stop)
            kind = "reasoning" if thinks and _REASONING.search(header) else "content"
            called = _CALL.search(header)
            if called and names and (yield from source.literal(0, "{")):
                yield from source.skip()
                yield from source.give("name", called[1])
                yield from source.arguments()
        else:
            yield from source.take("content", begins)
        count = yield from source.until(kind, _START, _CHANNEL, *_ENDS)
        if not count:
            return
        if source.rest[:count].endswith(_ENDS):
            source.drop(count)
            yield from source.skip()
            kind = "content"
        begins = 0


def _header(source: Source, i: int) -> Steps[int]:
    """Returns the place behind a header; 0 if another message begins or ends before its text."""
    while True:
        start, stop = source.first(i, _START, _MESSAGE, *_ENDS)
        if start < stop:
            return stop if source.rest[start:stop] == _MESSAGE else 0
        if source.closed:
            return 0
        yield None
