# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rows for human readers: their text, the trained tokens, and the documents they are from."""

import dataclasses
from collections.abc import Sequence
from html import escape

from dovetail_data import _elsewhere
from dovetail_data._arguments import require_integers
from dovetail_data.rows.contrast_rows import ContrastRows
from dovetail_data.rows.pair_rows import PairRows
from dovetail_data.rows.prompt_rows import PromptRows
from dovetail_data.rows.rows import Rows, require_rows
from dovetail_data.rows.token_rows import TokenRows
from dovetail_data.showing import page as _page
from dovetail_data.showing import terminal as _terminal
from dovetail_data.showing.passages import ShownRow, read_row
from dovetail_data.tokenizing.pieces import Reader
from dovetail_data.tokenizing.tokenizer import Tokenizer, require_tokenizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shown:
    """Rows made readable by `show`. Print them, or write `html()` to a file.

    Attributes:
        rows: Summary, documents and notes of each row, in the order asked for.
    """

    rows: tuple[ShownRow, ...]

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"Shown({len(self.rows)} rows; print it)"

    def text(self, *, color: bool = False, borders: bool = False) -> str:
        """Returns the rows for a terminal.

        Trained tokens stand between ⟦ and ⟧, special tokens between ⟨ and ⟩. Control characters
        become visible symbols, so no document can send commands to the terminal.

        Args:
            color: Show trained tokens in green instead.
            borders: Put a bar between tokens. Tokens that share a character stay together.
        """
        return _terminal.text(self.rows, color=color, borders=borders)

    def html(self, *, title: str = "Rows") -> str:
        """Returns the rows as an HTML page. It runs no script and loads nothing.

        Pointing at a token shows its id, position and mask.
        """
        return _page.html(self.rows, title=title)

    def _repr_html_(self) -> str:
        # In a frame: the page's style must not reach the notebook.
        return f'<iframe width="100%" height="400" srcdoc="{escape(self.html())}"></iframe>'


@_elsewhere.show
def show(rows: Rows, numbers: Sequence[int], *, tokenizer: Tokenizer | None = None) -> Shown:
    """Makes rows readable: text, chats, pairs, prompts, contrasts or images.

    A token is marked as trained if it counts as a target. The first of a segment never does. A
    corrupt document is reported in its place.

    Args:
        rows: The rows.
        numbers: Row numbers.
        tokenizer: Decodes the ids. Default: the tokenizer in the corpus's directory.

    Returns:
        The rows to be printed, or written as HTML.

    Raises:
        ValueError: The corpus holds no tokenizer and none is given.
        IndexError: A row number is out of range.

    Example:

        >>> from pathlib import Path
        >>> from dovetail_data import Bytes, Text, pack, text, write
        >>> _ = Path("a.txt").write_text("To be, or not to be: that is the question.")
        >>> rows = pack(write(text("a.txt"), "corpus", encoder=Text(Bytes())), length=64)
        >>> print(show(rows, [0]))
        row 0: 43 of 64 slots filled, 43 learnt
          document 0 (record 0 of a.txt), targets 0 to 42
            ⟨<|bos|>⟩⟦To be, or not to be: that is the question.⟨<|eos|>⟩⟧
          empty: 21 of 64 slots
    """
    require_rows(rows)
    if tokenizer is not None:
        require_tokenizer(tokenizer)
    row_numbers = require_integers("numbers", numbers).tolist()
    readers: dict[str, Reader] = {}

    def reader(source: Rows) -> Reader:
        source_tokenizer = tokenizer or _tokenizer(source)
        if (
            source_tokenizer.fingerprint not in readers
        ):  # a vocabulary is large to read again for each row
            readers[source_tokenizer.fingerprint] = Reader(source_tokenizer)
        return readers[source_tokenizer.fingerprint]

    return Shown(rows=tuple(read_row(rows, row, reader=reader) for row in row_numbers))


def _tokenizer(source: Rows) -> Tokenizer:
    if not isinstance(source, TokenRows | PairRows | PromptRows | ContrastRows):
        raise TypeError(
            f"rows must be of this package to know their tokenizer: got {type(source).__name__}. "
            "Pass show(tokenizer=...)."
        )
    return source.corpus.tokenizer
