# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Untrusted text made safe for a display."""


def visible(text: str, *, lines: bool = True) -> str:
    """Returns `text` with visible symbols for control characters.

    A line feed becomes ↵ and, with `lines`, a line feed; a tab ⇥ and a tab. Other control
    characters, such as escape or the marks for the direction of writing, become their symbol of
    Unicode's block U+2400 or their number. So no document moves the cursor or hides text.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _symbol(char, lines) for char in text)


def _symbol(char: str, lines: bool) -> str:
    if char == "\n":
        return "↵\n" if lines else "↵"
    if char == "\t":
        return "⇥\t" if lines else "⇥"
    code = ord(char)
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else f"⟨U+{code:04X}⟩"
