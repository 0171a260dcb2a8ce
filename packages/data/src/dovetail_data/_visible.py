# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Text from anywhere made safe to be shown."""


def visible(text: str, *, lines: bool = True) -> str:
    """`text` with a symbol for each character that is not printed, or that a terminal obeys.

    A line feed becomes ↵ and, with `lines`, a line feed; a tab ⇥ and a tab. What else steers the
    display, such as escape or the marks that turn the direction of writing, becomes its symbol of
    Unicode's block U+2400 or its number. So no document moves the cursor or hides a part of itself.
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
