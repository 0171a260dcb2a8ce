# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Sections of a page: results of your own, as text, tables or bars."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True, kw_only=True)
class Section:
    """Results of your own on a page, such as scores or generated text.

    Args:
        heading: Title of the section.
        content: A mapping of numbers is drawn as bars from 0, a mapping of text as a table, a
            string as a paragraph. Each string of a sequence keeps its line breaks.
        note: A sentence below the content.

    Raises:
        TypeError: The content is of another kind, or mixes numbers and text.
        ValueError: It is empty, or a number is negative or not finite.
    """

    heading: str
    content: str | Sequence[str] | Mapping[str, float] | Mapping[str, str]
    note: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.content, Sequence | Mapping):
            raise TypeError(
                f"content must be text, a sequence of texts or a mapping, got content="
                f"{self.content!r} under {self.heading!r}: write content={{'loss': "
                f"{self.content!r}}} for a bar"
            )
        if not self.content:
            raise ValueError(
                f"a section needs content, got content={self.content!r} under {self.heading!r}: "
                "leave the section out, or pass text, a sequence of texts or a mapping"
            )
        if not isinstance(self.content, Mapping):
            return
        texts = [isinstance(value, str) for value in self.content.values()]
        if any(texts) and not all(texts):
            raise TypeError(
                f"values must all be text or all numbers, got content={dict(self.content)!r} "
                f"under {self.heading!r}: write str(value) for a table of text"
            )
        numbers = {} if any(texts) else self.content
        if wrong := {n: v for n, v in numbers.items() if not 0 <= float(v) < math.inf}:
            raise ValueError(
                f"bars must be finite numbers from 0, got {wrong} under {self.heading!r}: pass "
                "them as text"
            )

    def html(self) -> str:
        """Returns the section as HTML, escaped."""
        note = f'<p class="note">{escape(self.note)}</p>' if self.note else ""
        return f"<section><h2>{escape(self.heading)}</h2>{self._content()}{note}</section>"

    def _content(self) -> str:
        if isinstance(self.content, str):
            return f"<p>{escape(self.content)}</p>"
        if not isinstance(self.content, Mapping):
            return "".join(f"<pre>{escape(text)}</pre>" for text in self.content)
        most = max((float(v) for v in self.content.values() if not isinstance(v, str)), default=0.0)
        lines = (
            f"<tr><th>{escape(name)}</th>{_cells(value, most)}</tr>"
            for name, value in self.content.items()
        )
        return f"<table><tbody>{''.join(lines)}</tbody></table>"


def _cells(value: str | float, most: float) -> str:
    """Returns a text, or a number and its bar, whose length is its share in `most`."""
    if isinstance(value, str):
        return f"<td>{escape(value)}</td>"
    width = f"width:{100 * float(value) / (most or 1.0):.1f}%"
    return f'<td>{float(value):.4g}</td><td class="wide"><i style="{width}"></i></td>'
