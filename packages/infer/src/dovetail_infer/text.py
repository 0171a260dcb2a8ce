# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""From token ids to text as they come, and stop strings.

Decoding all ids for each new token costs quadratic time, and decoding each id alone splits
characters and loses the space before a word. `Detokenizer` decodes a window of the last ids, in
which a few ids whose text was returned already give the context of the new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dovetail_infer.types import NamingTokenizer, Tokenizer

_REPLACEMENT = "\ufffd"
_HELD = 3  # bytes of a character without its last; byte-fallback decoders write one U+FFFD for each
_WINDOW = 8  # ids from which a window is cut ...
_CONTEXT = 4  # ... to about this many


def decoder(tokenizer: Tokenizer, *, skip_special_tokens: bool) -> Callable[[Sequence[int]], str]:
    """Returns the function of a tokenizer that decodes ids, without special tokens or with them."""
    if skip_special_tokens:
        return tokenizer.decode
    assert isinstance(tokenizer, NamingTokenizer)  # `check_request` refuses others
    return tokenizer.decode_with_specials


class Detokenizer:
    """Text of a growing list of ids.

    The texts of all `push` and of `flush` together are those of `decoder(ids)`. An exception are
    decoders that write a run of bytes as U+FFFD if any byte of it is invalid (byte fallback, as
    Llama 2): a complete character before that byte stays as it is.

    Args:
        tokenizer: It decodes windows of the ids.
        skip_special_tokens: As in `Sampling`.

    Example:

        >>> from dovetail_infer.testing import ByteTokenizer
        >>> detokenizer = Detokenizer(ByteTokenizer())
        >>> detokenizer.push([104, 195]), detokenizer.push([169]), detokenizer.flush()
        ('h', 'é', '')
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True):
        self._tokenizer = tokenizer
        self._decode = decoder(tokenizer, skip_special_tokens=skip_special_tokens)
        self._ids: list[int] = []  # the window
        self._text = ""  # its text
        self._shown = ""  # the beginning of its text that was returned
        self._complete = 0  # ids of the window whose text was returned as a whole
        self._limit = _WINDOW
        self._silent: dict[int, bool] = {}

    def push(self, ids: Sequence[int]) -> str:
        """Returns the text that is final now: no half of a character."""
        return "".join([self._add(int(i)) for i in ids])

    def flush(self) -> str:
        """Returns the rest: bytes of an incomplete character become U+FFFD."""
        if not self._text.startswith(self._shown):
            self._forget()
        return self._show(len(self._text))

    def _add(self, token: int) -> str:
        """Adds one id. Of several at once byte fallback may hide complete characters."""
        text = self._decode([*self._ids, token])
        if text == self._text and self._is_silent(token):
            return ""
        self._ids.append(token)
        self._text = text
        if not text.startswith(self._shown):
            return self._restart()
        held = min(_HELD, len(text) - len(text.rstrip(_REPLACEMENT)))
        return self._show(max(len(text) - held, len(self._shown)))

    def _show(self, end: int) -> str:
        """Returns the text of the window up to `end` that was not returned before."""
        new, self._shown = self._text[len(self._shown) : end], self._text[:end]
        if end == len(self._text):
            self._complete = len(self._ids)
        if len(self._ids) > self._limit:
            self._cut()
        return new

    def _restart(self) -> str:
        """Returns the text of ids after which the window has another text than the returned one.

        A decoder with byte fallback writes complete characters before an incomplete one as U+FFFD.
        They may become characters again. If not, the window begins after them.
        """
        pending = self._ids[self._complete :]
        text = self._decode(pending)
        if len(pending) <= _HELD and text.endswith(_REPLACEMENT):
            return ""
        self._forget()
        return self._show(len(text))

    def _forget(self) -> None:
        """Drops the ids whose text was returned."""
        self._ids = self._ids[self._complete :]
        self._text = self._decode(self._ids)
        self._shown, self._complete = "", 0

    def _cut(self) -> None:
        """Drops ids from the beginning of the window where the rest decodes as before."""
        held = self._text[len(self._shown) :]
        for start in range(len(self._ids) - _CONTEXT, 0, -1):
            text = self._decode(self._ids[start:])
            shown = text[: len(text) - len(held)]
            # The window may begin within a character. It has text, so that it hides no space.
            if text.endswith(held) and self._ends_with(shown.lstrip(_REPLACEMENT) or shown):
                self._ids, self._text, self._shown = self._ids[start:], text, shown
                self._complete = max(0, self._complete - start)
                self._limit = _WINDOW
                return
        self._limit = 2 * len(self._ids)

    def _ends_with(self, text: str) -> bool:
        return text != "" and self._shown.endswith(text)

    def _is_silent(self, token: int) -> bool:
        """Returns whether an id adds nothing wherever it is, as special ids do."""
        if token not in self._silent:
            (probe,) = self._tokenizer.encode(["a"])
            ids = [int(i) for i in probe.ids]
            self._silent[token] = self._decode([*ids, token]) == self._decode(ids)
        return self._silent[token]


class StopStrings:
    """Search for stop strings in a text that grows.

    The stop string that is complete first ends the text, at any division of it: "ab" wins over
    "abc". Of those that are complete at the same character, the one that began first wins. vLLM
    searches after each token and takes the first of the list, so that its answer depends on the
    tokens.

    Args:
        stops: The stop strings.

    Example:

        >>> stops = StopStrings(["END"])
        >>> stops.push("one E"), stops.push("ND two")
        (('one ', None), ('', 'END'))
    """

    def __init__(self, stops: Sequence[str]):
        self._stops = tuple(stops)
        self._held = ""

    def push(self, text: str, *, counts: bool = True) -> tuple[str, str | None]:
        """Adds text, and returns the text that is final and the stop string that ends it, or None.

        After a stop string the search is over: the rest of the text is dropped.

        Args:
            text: New text.
            counts: Whether a stop string that this text completes ends the text. False before
                `Sampling.min_tokens`.

        Returns:
            Text without a beginning of a stop string at its end, and the stop string.
        """
        before, text = len(self._held), self._held + text
        if counts and (match := self._first(text, before)):
            start, stop = match
            self._held = ""
            return text[:start], stop
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], None

    def flush(self) -> str:
        """Returns the text that was held back as the beginning of a stop string."""
        text, self._held = self._held, ""
        return text

    def _first(self, text: str, before: int) -> tuple[int, str] | None:
        """Returns the place of the stop string that ends first behind `before`, and the string."""
        places = [(text.find(s, max(0, before - len(s) + 1)), s) for s in self._stops]
        ends = [(start + len(s), start, s) for start, s in places if start >= 0]
        return min(ends)[1:] if ends else None


def _overlap(text: str, stop: str) -> int:
    """Returns the length of the longest end of `text` that is a true beginning of `stop`."""
    start = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while start >= 0 and not stop.startswith(text[start:]):
        start = text.find(stop[0], start + 1)
    return len(text) - start if start >= 0 else 0
