# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Calls as Hermes and Qwen write them: <tool_call>{"name": ..., "arguments": {...}}</tool_call>."""

from __future__ import annotations

from collections.abc import Collection

from dovetail_infer.server.formats.calls import call
from dovetail_infer.server.formats.source import Source, Steps

_OPENS, _CLOSES = MARKS = "<tool_call>", "</tool_call>"


def grammar(source: Source, names: Collection[str]) -> Steps[None]:
    """Reads content and calls."""
    while count := (yield from source.until("content", _OPENS)):
        if (yield from call(source, count)):
            yield from source.skip(_CLOSES)
        else:
            yield from source.take("content", count)
