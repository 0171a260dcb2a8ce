# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Spans of a template's text, found by writing it again with marks around them."""

import itertools
import re

# Unicode sets these 32 apart for use inside a program; text hardly ever holds one.
_NONCHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]


def free(text: str) -> tuple[str, str]:
    """Returns two characters that are not in `text`."""
    unused = [mark for mark in _NONCHARACTERS if mark not in text]
    if len(unused) < 2:
        raise ValueError(
            "messages must leave two of the noncharacters U+FDD0..U+FDEF free: got all in one "
            "conversation. Delete them."
        )
    return unused[0], unused[1]


def turns(marked: str, text: str, opens: str, closes: str) -> tuple[tuple[int, int], ...]:
    """Returns the spans from each opening mark to the next mark of either kind.

    Args:
        marked: The text with marks.
        text: The text.
        opens: The opening mark.
        closes: The closing mark.
    """
    pieces = re.split(f"([{opens}{closes}])", marked)
    if "".join(pieces[::2]) != text:
        raise ValueError(
            "the output of a template's loop over the messages must stand unchanged in the text: "
            "got it changed by a filter. Add {% generation %} blocks to the template."
        )
    ends = list(itertools.accumulate(len(piece) for piece in pieces[::2]))
    between = zip(pieces[1::2], ends[:-1], ends[1:], strict=True)
    return tuple((start, stop) for mark, start, stop in between if mark == opens and start < stop)


def blocks(marked: str, text: str, opens: str, closes: str) -> tuple[tuple[int, int], ...]:
    """Returns the spans from each opening mark to its closing one.

    Args:
        marked: The text with marks.
        text: The text.
        opens: The opening mark.
        closes: The closing mark.
    """
    pieces = re.split(f"([{opens}{closes}])", marked)
    written, marks = pieces[::2], pieces[1::2]
    if "".join(written) != text or marks != [opens, closes] * (len(marks) // 2):
        raise ValueError(
            "the output of a {% generation %} block must stand unchanged in the text: got blocks "
            "within each other, or changed by a filter or a test. Put the blocks around the "
            "expressions that write the text."
        )
    ends = list(itertools.accumulate(len(piece) for piece in written))
    return tuple(zip(ends[:-1:2], ends[1::2], strict=True))
