# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rows as a person reads them: their text, what of it is learnt, which documents it is from."""

import dataclasses
from collections.abc import Sequence

from dovetail_data import _page, _terminal
from dovetail_data._passages import ShownRow, read_row
from dovetail_data._pieces import Reader
from dovetail_data.pair_rows import PairRows
from dovetail_data.prompt_rows import PromptRows
from dovetail_data.rows import Rows
from dovetail_data.token_rows import TokenRows
from dovetail_data.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shown:
    """What `show` returns: print it, or write `html()` to a file."""

    rows: tuple[ShownRow, ...]

    def __str__(self) -> str:
        return self.text()

    def text(self, *, color: bool = False, borders: bool = False) -> str:
        """For a terminal: what is learnt between ⟦ and ⟧, or green with `color`; special tokens
        between ⟨ and ⟩. borders: a bar between pieces.

        Control characters of the data are shown as visible symbols: nothing that a document holds
        reaches the terminal as a command.
        """
        return _terminal.text(self.rows, color=color, borders=borders)

    def html(self, *, title: str = "Rows") -> str:
        """A page for a browser, to be kept or sent: it runs no script and loads nothing. Pointing
        at a piece shows its ids, position and mask."""
        return _page.html(self.rows, title=title)


def show(rows: Rows, numbers: Sequence[int], *, tokenizer: Tokenizer | None = None) -> Shown:
    """The rows `numbers` to be looked at: of text, chats, preference pairs, prompts or images.

    An id is learnt if it counts as a target, which the first of a segment never is. Where a
    character is spread over several ids they are one piece. tokenizer: by default the one kept with
    the corpus; ValueError if it was none of this package. A corrupt document is told in its place.

        print(show(pack(corpus, length=128), [0, 1]))
    """
    readers: dict[str, Reader] = {}

    def reader(source: Rows) -> Reader:
        chosen = tokenizer or _tokenizer(source)
        if chosen.fingerprint not in readers:  # a vocabulary is large to read again for each row
            readers[chosen.fingerprint] = Reader(chosen)
        return readers[chosen.fingerprint]

    return Shown(rows=tuple(read_row(rows, row, reader=reader) for row in numbers))


def _tokenizer(source: Rows) -> Tokenizer:
    if not isinstance(source, TokenRows | PairRows | PromptRows):
        raise TypeError(
            f"rows must be of this package to know their tokenizer: got {type(source).__name__}. "
            "Pass show(tokenizer=...)."
        )
    return source.corpus.tokenizer
