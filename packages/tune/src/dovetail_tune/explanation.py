# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The explanation of a batch as values, and as lines for a terminal."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from dovetail_tune._explained import Explained
from dovetail_tune._shown import Piece, ShownRow

# ANSI "select graphic rendition" (ECMA-48, 8.3.117).
_HEADING, _TRAINED, _CONTEXT, _FAULT = "1", "32", "2", "31"
_SPECIAL = ";7"  # reversed
_LISTED = 8  # rows that a line of the table names
_LABEL = 22  # columns of the table's first column


@dataclasses.dataclass(frozen=True, kw_only=True)
class Faults:
    """Rows whose loss is not what it seems, by number. Empty: none.

    Attributes:
        untrained: Rows with tokens and no target that counts. Empty if the batch has no targets.
        cut: Rows whose last document reaches the last slot and does not end as documents end: in
            the tokenizer's eos, or in the last id of a document with slots after it.
        shifted: Rows with a target that counts and is not the next token of its document.
        negative: Rows with a target below 0 that counts. Their loss is NaN.
        padding: Rows with a mask above 0 on padding.
    """

    untrained: tuple[int, ...] = ()
    cut: tuple[int, ...] = ()
    shifted: tuple[int, ...] = ()
    negative: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pairs:
    """Pairs of a batch with `pair_ids`: rows 2i are chosen and rows 2i + 1 rejected.

    Attributes:
        count: Number of pairs, without those of two empty rows.
        identical: Chosen rows whose rejected row has the same ids and mask.
        torn: Even rows whose next row has other `pair_ids`, or does not exist.
        different_prompts: Chosen rows whose prompt is not that of the rejected row, up to the 4 ids
            that a token over the end of the prompt may change.
        empty_answers: Rows without an id that counts.
    """

    count: int
    identical: tuple[int, ...]
    torn: tuple[int, ...]
    different_prompts: tuple[int, ...]
    empty_answers: tuple[int, ...]


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Explanation(Explained):
    """Numbers and rows of one batch. Print it, or use `render` or `json`.

    Attributes:
        rows: The first rows, readable.
        batch_rows: Number of rows of the batch.
        length: Slots per row.
        fields: dtype[shape] of each field.
        tokens: Slots that hold a token: all with segment_ids above 0, or all without that field.
        documents: Segments of all rows.
        most_documents: Largest number of segments in a row.
        trained: Targets that carry loss: those with a mask above 0 on a token. None without
            targets.
        weights: Smallest and largest mask of these; (1, 1) if all count alike. None without any.
        empty: Rows without a token: fillers of a last batch, or damaged documents.
        last_ids: Number of documents that end in each id.
        faults: Rows whose loss is not what it seems.
        pairs: Pairs and their faults. None without `pair_ids`.
    """

    rows: tuple[ShownRow, ...]
    batch_rows: int
    length: int
    fields: dict[str, str]
    tokens: int
    documents: int
    most_documents: int
    trained: int | None
    weights: tuple[float, float] | None
    empty: tuple[int, ...]
    last_ids: dict[int, int]
    faults: Faults
    pairs: Pairs | None

    def _summary(self) -> str:
        return f"{_count(self.batch_rows, 'row')}, {_count(self.tokens, 'token')}"

    def __str__(self) -> str:
        return self.render(color=False)

    def render(self, *, color: bool = True) -> str:
        """Returns a table and the rows, for a terminal.

        Control characters become visible symbols, so no document sends commands to the terminal.

        Args:
            color: Show trained tokens in green and others dim, by ANSI codes. Without, trained
                tokens stand between ⟦ and ⟧.
        """
        return _rendered(self, color=color)


def _rendered(explanation: Explanation, *, color: bool) -> str:
    """Returns the table and the rows.

    Args:
        explanation: The explanation.
        color: Use ANSI colors.
    """
    blocks = [_table(explanation, color), *(_row(row, color) for row in explanation.rows)]
    hidden = explanation.batch_rows - len(explanation.rows)
    if hidden and explanation.rows:
        blocks.append(iter([f"+ {_count(hidden, 'row')} not shown"]))
    return "\n\n".join("\n".join(block) for block in blocks)


def _table(e: Explanation, color: bool) -> Iterator[str]:
    yield _painted(f"{_count(e.batch_rows, 'row')} of {_count(e.length, 'slot')}", _HEADING * color)
    slots = e.batch_rows * e.length
    yield _line("tokens", f"{e.tokens} of {_count(slots, 'slot')}{_share(e.tokens, slots)}")
    yield _line("documents", f"{e.documents}, at most {e.most_documents} in a row")
    ends = [f"{i} x{n}" for i, n in itertools.islice(e.last_ids.items(), 3)]
    more = len(e.last_ids) - len(ends)
    yield _line("last ids", ", ".join(ends) + (f", + {more} others" if more else "") or "none")
    if e.trained is None:
        yield _line("trained", "none: the batch has no targets")
    else:
        yield _line("trained", f"{e.trained} of {_count(e.tokens, 'target')}"
                    f"{_share(e.trained, e.tokens)}")  # fmt: skip
        masked = e.tokens - e.trained
        yield _line("not trained", f"{masked} with mask 0, {e.documents} first of a document, "
                    f"{slots - e.tokens} padding")  # fmt: skip
    if e.weights and e.weights != (1.0, 1.0):
        yield _line("masks", f"{e.weights[0]:g} to {e.weights[1]:g}, not 0 and 1 alone")
    yield from _faults(e, color)
    others = ("tokens", "targets", "mask", "segment_ids", "positions", "pair_ids")
    listed = [f"{name} {kind}" for name, kind in e.fields.items() if name not in others]
    if listed:
        yield _line("other fields", ", ".join(listed))


def _faults(e: Explanation, color: bool) -> Iterator[str]:
    def fault(name: str, rows: Sequence[int], *, always: bool = False) -> Iterator[str]:
        if rows or always:
            yield _painted(_line(name, _rows(rows)), _FAULT * (color and bool(rows)))

    yield from fault("empty rows", e.empty)
    if e.trained is not None:
        yield from fault("nothing trained", e.faults.untrained, always=True)
    yield from fault("may be cut", e.faults.cut, always=True)
    yield from fault("not the next token", e.faults.shifted)
    yield from fault("targets below 0", e.faults.negative)
    yield from fault("trained padding", e.faults.padding)
    if e.pairs is not None:
        yield _line("pairs", str(e.pairs.count))
        yield from fault("  identical", e.pairs.identical, always=True)
        yield from fault("  torn", e.pairs.torn, always=True)
        yield from fault("  different prompts", e.pairs.different_prompts, always=True)
        yield from fault("  empty answers", e.pairs.empty_answers, always=True)


def _row(row: ShownRow, color: bool) -> Iterator[str]:
    values = "".join(f", {name} {_value(value)}" for name, value in row.values.items())
    title = f"row {row.row}{row.role and f' ({row.role})'}: {_count(row.tokens, 'token')}"
    yield _painted(f"{title}, {row.trained} trained{values}", _HEADING * color)
    for document in row.documents:
        yield "\n".join("  " + line for line in _document(document, color).split("\n"))
    if row.padding:
        yield f"  + {row.padding} padding"


def _document(pieces: Sequence[Piece], color: bool) -> str:
    runs = []
    for trained, group in itertools.groupby(pieces, key=lambda piece: piece.trained):
        style = _TRAINED if trained else _CONTEXT
        texts = [_text(piece, style * color) for piece in group]
        body = (" " if pieces[0].text is None else "").join(texts)
        runs.append(f"⟦{body}⟧" if trained and not color else body)
    return (" " if pieces[0].text is None else "").join(runs)


def _text(piece: Piece, style: str) -> str:
    if piece.text is None:
        return _painted(" ".join(map(str, piece.ids)), style)
    if piece.special:
        return _painted(f"⟨{_visible(piece.text)}⟩", style and style + _SPECIAL)
    return _painted(_visible(piece.text), style)


def _visible(text: str) -> str:
    """Returns text whose control characters are visible. A line feed is ⏎ and a line feed."""
    return "".join(char if char.isprintable() else _symbol(char) for char in text)


def _symbol(char: str) -> str:
    code = ord(char)
    if code < 0x20:  # U+2400: the pictures of control characters
        return {"\n": "⏎\n", "\t": "⇥"}.get(char, chr(0x2400 + code))
    return "\u2421" if code == 0x7F else f"⟨U+{code:04X}⟩"


def _painted(text: str, style: str) -> str:
    """Paints each line by itself: pagers forget the style at a line's end."""
    if not style:
        return text
    return "\n".join(f"\x1b[{style}m{line}\x1b[0m" if line else "" for line in text.split("\n"))


def _value(value: int | float | str) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _line(label: str, value: str) -> str:
    return f"  {label:{_LABEL}}{value}"


def _rows(rows: Sequence[int]) -> str:
    if not rows:
        return "none"
    more = f" and {len(rows) - _LISTED} more" if len(rows) > _LISTED else ""
    return f"{len(rows)}: row{'s' * (len(rows) > 1)} {', '.join(map(str, rows[:_LISTED]))}{more}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _share(part: int, whole: int) -> str:
    return f" ({100 * part / whole:.1f} %)" if whole else ""
