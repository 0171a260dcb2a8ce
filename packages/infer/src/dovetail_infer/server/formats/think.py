# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Reasoning between two marks at the beginning of an answer, as <think>...</think>."""

from __future__ import annotations

from dovetail_infer.server.formats.source import Source, Steps

MARKS = {"think": ("<think>", "</think>"), "mistral": ("[THINK]", "[/THINK]")}


def grammar(source: Source, marks: tuple[str, str], *, opened: bool) -> Steps[None]:
    """Reads reasoning, and leaves what follows.

    Args:
        source: An answer.
        marks: The opening one and the closing one.
        opened: The prompt ends with the opening one. Otherwise the answer must begin with it: a
            closing one alone is content, since what came before it has been sent as content.
    """
    opens, closes = marks
    begins = yield from source.literal(0, opens)
    if not (begins or opened):
        return
    source.drop(begins)
    yield from source.skip()
    source.drop((yield from source.until("reasoning", closes)))
    yield from source.skip()
