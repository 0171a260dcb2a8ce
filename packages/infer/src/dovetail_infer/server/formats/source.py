# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`Source`: the text of an answer as it comes, for grammars that wait for more of it.

A grammar is a generator over a source. It yields events, and None where it needs more text. It
decides by the text alone, never by the places where the pieces were cut, so an answer read whole
and one read in pieces have the same events, joined.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Generator
from typing import Literal, NamedTuple, TypeAlias, TypeVar

T = TypeVar("T")
Kind: TypeAlias = Literal["content", "reasoning", "name", "arguments"]
_BRACKETS = re.compile(r'["{}\[\]<]')
_QUOTED = re.compile(r'\\.|"', re.DOTALL)


class Event(NamedTuple):
    """A piece of an answer. A "name" begins a call; the "arguments" behind it are the call's."""

    kind: Kind
    text: str


Steps: TypeAlias = Generator[Event | None, None, T]


class Source:
    """The text that no grammar has consumed.

    Args:
        hidden: Texts that no grammar sees: the names of special tokens.

    Attributes:
        rest: The text so far.
        closed: No more comes.
        called: The last event was one of a call.
    """

    def __init__(self, hidden: tuple[str, ...] = ()) -> None:
        self.rest, self.closed, self.called = "", False, False
        self._raw, self._hidden = "", _marks(hidden)

    def feed(self, text: str, *, closed: bool = False) -> None:
        """Adds text."""
        self._raw, self.closed = self._raw + text, closed
        while True:
            start, stop = self._hidden.first(self._raw, closed=closed)
            self.rest, self._raw = self.rest + self._raw[:start], self._raw[stop:]
            if start == stop:
                return

    def drop(self, count: int) -> None:
        """Consumes characters."""
        self.rest = self.rest[count:]

    def take(self, kind: Kind, count: int) -> Steps[None]:
        """Yields the first characters as an event."""
        if count:
            yield from self.give(kind, self.rest[:count])
            self.drop(count)

    def give(self, kind: Kind, text: str) -> Steps[None]:
        """Yields an event."""
        self.called = kind in ("name", "arguments")
        yield Event(kind, text)

    def char(self, i: int) -> Steps[str]:
        """Returns a character without consuming it; "" behind the end."""
        while len(self.rest) <= i and not self.closed:
            yield None
        return self.rest[i : i + 1]

    def space(self, i: int) -> Steps[int]:
        """Returns the first place from `i` on without white space."""
        while (yield from self.char(i)).isspace():
            i += 1
        return i

    def literal(self, i: int, text: str) -> Steps[int]:
        """Returns the place behind `text`, white space before it aside; 0 if it is not there."""
        i = yield from self.space(i)
        for char in text:
            if (yield from self.char(i)) != char:
                return 0
            i += 1
        return i

    def skip(self, text: str = "") -> Steps[None]:
        """Consumes white space, and `text` behind it; nothing if that does not come next."""
        self.drop((yield from self.literal(0, text)))

    def first(self, i: int, *marks: str) -> tuple[int, int]:
        """Returns the start and the end of the first mark from `i` on; equal if there is none."""
        start, stop = _marks(marks).first(self.rest[i:], closed=self.closed)
        return i + start, i + stop

    def until(self, kind: Kind, *marks: str) -> Steps[int]:
        """Yields the text before the first of some marks.

        White space between a call and the end of the answer is left out.

        Returns:
            Characters of the mark and of the white space before it, which are not consumed; 0 at
            the end of the answer.
        """
        while True:
            start, stop = self.first(0, *marks)
            text = len(self.rest[:start].rstrip())
            if self.closed and start == stop:
                yield from self.take(kind, start if text or not self.called else 0)
                return 0
            yield from self.take(kind, text)
            if start < stop:
                return stop - text
            yield None

    def arguments(self) -> Steps[None]:
        """Yields an object of JSON as it is written, to its closing bracket.

        A "<" outside of strings, which no JSON has, ends it too: a mark of the format follows.
        """
        depth, quoted, i = 0, False, 0
        while True:
            match = (_QUOTED if quoted else _BRACKETS).search(self.rest, i)
            if match is None:
                # A backslash waits for the character behind it.
                waits = quoted and self.rest.endswith("\\", i) and not self.closed
                yield from self.take("arguments", len(self.rest) - waits)
                if self.closed:
                    return
                i = 0
                yield None
                continue
            i = match.end()
            if match[0] == '"':
                quoted = not quoted
            elif match[0] == "<":
                yield from self.take("arguments", match.start())
                return
            elif not quoted:
                depth += 1 if match[0] in "{[" else -1
                if not depth:
                    yield from self.take("arguments", i)
                    return


class _Marks:
    """Finds the first of some texts, the longest of those at one place."""

    def __init__(self, texts: tuple[str, ...]) -> None:
        longest = sorted(texts, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest)) or "(?!)")
        self._beginnings = {text[:i] for text in texts for i in range(1, len(text))}
        self._most = max(map(len, texts), default=0)

    def first(self, text: str, *, closed: bool) -> tuple[int, int]:
        """Returns the start and the end of the first text that is there.

        Without any, both are the end of `text`, or the place of what may become one.
        """
        waits = len(text)
        if not closed:
            places = range(max(0, len(text) - self._most + 1), len(text))
            waits = next((i for i in places if text[i:] in self._beginnings), waits)
        match = self._pattern.search(text)
        return match.span() if match and match.start() < waits else (waits, waits)


_marks = functools.lru_cache(maxsize=64)(_Marks)
