# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Untrusted text made safe for a display."""

import re

from dovetail_data._command import printable


def visible(text: str, *, lines: bool = True) -> str:
    """Returns `text` with visible symbols for control characters.

    A line feed becomes ↵ and, with `lines`, a line feed; a tab ⇥ and a tab. Other control
    characters, such as escape or the marks for the direction of writing, become their symbol of
    Unicode's block U+2400 or their number. So no document moves the cursor or hides text.
    """
    marks = {"\n": "↵\n", "\t": "⇥\t"} if lines else {"\n": "↵", "\t": "⇥"}
    return "".join(marks.get(piece) or printable(piece) for piece in re.split(r"([\n\t])", text))
