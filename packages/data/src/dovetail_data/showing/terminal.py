# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rows for a terminal."""

import itertools
from collections.abc import Iterator, Sequence

from dovetail_data.showing.passages import Passage, ShownRow
from dovetail_data.showing.visible import visible
from dovetail_data.tokenizing.pieces import Piece

# ANSI "select graphic rendition" (ECMA-48, 8.3.117).
_HEADING, _LEARNT, _CONTEXT, _ERROR = "1", "32", "2", "31"
_SPECIAL = ";7"  # reversed
_BORDER = "│"


def text(rows: Sequence[ShownRow], *, color: bool, borders: bool) -> str:
    """Returns the rows as text; see `Shown.text`.

    Args:
        rows: The rows.
        color: Use ANSI colors.
        borders: Put a bar between tokens.
    """
    return "\n\n".join("\n".join(_row(row, color, borders)) for row in rows)


def _row(row: ShownRow, color: bool, borders: bool) -> Iterator[str]:
    yield _painted(f"row {row.row}: {row.summary}", _HEADING if color else "")
    for passage in row.passages:
        title = visible(passage.title, lines=False)
        yield "  " + _painted(title, _HEADING if color else "")
        if passage.error:
            error = visible(passage.error, lines=False)
            yield "    " + _painted(error, _ERROR if color else "")
        if passage.pieces:
            yield _indented(_text(passage, color, borders), 4)
    for name, note in row.notes.items():
        # A line of a note may be data: JSON leaves some control characters as they are.
        safe = "\n".join(visible(line) for line in f"{name}: {note}".split("\n"))
        yield _indented(safe, 2)


def _text(passage: Passage, color: bool, borders: bool) -> str:
    border = _BORDER if borders else ""
    runs = []
    for (learnt, special), run in itertools.groupby(passage.pieces, key=_kind):
        body = border.join(_plain(piece) for piece in run)
        if color:
            style = (_LEARNT if learnt else _CONTEXT) + (_SPECIAL if special else "")
            body = _painted(body, style)
        runs.append((learnt and not color, body))
    brackets = itertools.groupby(runs, key=lambda run: run[0])
    joined = [(learnt, border.join(body for _, body in same)) for learnt, same in brackets]
    return border.join(f"⟦{body}⟧" if learnt else body for learnt, body in joined)


def _kind(piece: Piece) -> tuple[bool, bool]:
    return piece.mask > 0, piece.special


def _plain(piece: Piece) -> str:
    return f"⟨{visible(piece.text)}⟩" if piece.special else visible(piece.text)


def _painted(text: str, style: str) -> str:
    """Paints each line by itself: pagers forget the style at a line's end."""
    if not style:
        return text
    return "\n".join(f"\x1b[{style}m{line}\x1b[0m" if line else "" for line in text.split("\n"))


def _indented(text: str, by: int) -> str:
    return "\n".join(" " * by + line for line in text.split("\n"))
