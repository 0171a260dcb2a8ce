# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Text of growing ids, and stop strings, at every division."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dovetail_infer.testing import ByteTokenizer
from dovetail_infer.text import Detokenizer, StopStrings
from dovetail_infer.types import Tokenizer

TEXTS = st.text(alphabet="aé€😀 \ufffd", max_size=12)
SPECIALS = [256, 257]


@dataclasses.dataclass
class Encoding:
    ids: list[int]


class Words:
    """A tokenizer of words: ids are words with the space before them, which the first one loses."""

    vocab_size, bos_id, eos_id = 4, None, 3
    words = (" a", " bc", " ", "")

    def encode(self, texts: Sequence[str]) -> list[Encoding]:
        assert list(texts) == ["a"]
        return [Encoding([0])]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.words[i] for i in ids).removeprefix(" ")


class Counting(ByteTokenizer):
    """Counts the ids that it decodes."""

    def __init__(self) -> None:
        self.decoded = 0

    def decode(self, ids: Sequence[int]) -> str:
        self.decoded += len(ids)
        return super().decode(ids)


def pieces(ids: list[int], cuts: Sequence[int]) -> list[list[int]]:
    ends = sorted({c % (len(ids) + 1) for c in cuts})
    starts = [0, *ends]
    return [ids[a:b] for a, b in zip(starts, [*ends, len(ids)], strict=True)]


def streamed(
    tokenizer: Tokenizer, parts: Sequence[Sequence[int]], *, skip_special_tokens: bool = True
) -> list[str]:
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
    return [*map(detokenizer.push, parts), detokenizer.flush()]


@given(
    st.lists(st.one_of(TEXTS.map(str.encode), st.binary(max_size=5), st.sampled_from(SPECIALS))),
    st.lists(st.integers(0, 60), max_size=6),
)
@example([b"\xe2\x82", 257, b"\xac"], [2])  # a special id within a character
@example([b"\xff" * 30], [3, 4, 5])
@example([("a" * 12 + "é").encode()], [13])
def test_every_division_of_bytes(items: list[bytes | int], cuts: list[int]) -> None:
    ids = [i for x in items for i in ([x] if isinstance(x, int) else x)]
    tokenizer = ByteTokenizer()
    whole = tokenizer.decode(ids)
    assert "".join(streamed(tokenizer, pieces(ids, cuts))) == whole
    assert "".join(streamed(tokenizer, [[i] for i in ids])) == whole
    named = tokenizer.decode_with_specials(ids)
    for parts in (pieces(ids, cuts), [[i] for i in ids]):
        assert "".join(streamed(tokenizer, parts, skip_special_tokens=False)) == named


@given(st.lists(st.integers(0, 3), max_size=40), st.lists(st.integers(0, 60), max_size=6))
@example([3] * 9 + [2] * 9 + [0], [])
def test_a_space_that_only_the_first_word_loses(ids: list[int], cuts: list[int]) -> None:
    whole = Words().decode(ids)
    assert "".join(streamed(Words(), pieces(ids, cuts))) == whole
    assert "".join(streamed(Words(), [[i] for i in ids])) == whole


@given(TEXTS)
def test_no_text_is_shown_before_its_character_is_complete(text: str) -> None:
    ids = list(text.encode())
    shown = ""
    detokenizer = Detokenizer(ByteTokenizer())
    for i, token in enumerate(ids):
        shown += detokenizer.push([token])
        assert text.startswith(shown)
        # Bytes of a character, or U+FFFD of the text itself, are all that is held.
        complete = bytes(ids[: i + 1]).decode(errors="ignore")
        assert len(complete.rstrip("\ufffd")) <= len(shown) + 3
        if not complete.endswith("\ufffd") and complete.encode() == bytes(ids[: i + 1]):
            assert shown == complete


def test_invalid_bytes_are_not_held_forever() -> None:
    shown = streamed(ByteTokenizer(), [[0xFF]] * 10)
    assert shown == ["", "", "", *["\ufffd"] * 7, "\ufffd" * 3]


@pytest.mark.parametrize(
    "ids",
    [[97], [0xFF], [257], list("é€😀".encode()), [257, 97, 0xC3]],
    ids=["letters", "invalid", "specials", "characters", "mixed"],
)
def test_decoding_is_linear(ids: list[int]) -> None:
    def decoded(length: int) -> int:
        tokenizer = Counting()
        streamed(tokenizer, [[ids[i % len(ids)]] for i in range(length)])
        return tokenizer.decoded

    # A window has up to 9 ids, and is cut with up to 9 others each time that it has gained 5.
    assert decoded(10_000) <= 16 * 10_000
    assert decoded(10_000) <= 10.5 * decoded(1_000)


def first(text: str, stops: Sequence[str], skipped: int = 0) -> tuple[int, str] | None:
    """The stop string that ends first, behind `skipped` characters: where it starts, and itself."""
    for end in range(skipped + 1, len(text) + 1):
        ending = [s for s in stops if text[:end].endswith(s)]
        if ending:
            stop = max(ending, key=len)
            return end - len(stop), stop
    return None


LETTERS = st.text(alphabet="abc", max_size=12)
STOPS = st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=4)


@given(LETTERS, STOPS, st.lists(st.integers(0, 12), max_size=5), st.integers(0, 5))
@example("abc", ["ab", "bc"], [1, 2], 0)
@example("aab", ["ab"], [1, 2], 0)
@example("xabc", ["abc", "b"], [2, 3], 0)
@example("abab", ["ab", "abc"], [2], 1)
@pytest.mark.parameter("stop")
def test_every_division_of_stops(
    text: str, stops: list[str], cuts: list[int], uncounted: int
) -> None:
    ends = sorted({c % (len(text) + 1) for c in cuts} | {len(text)})
    parts = [text[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    skipped = sum(len(part) for part in parts[:uncounted])
    match = first(text, stops, skipped)

    search = StopStrings(stops)
    shown, stop = "", None
    for i, part in enumerate(parts):
        new, stop = search.push(part, counts=i >= uncounted)
        shown += new
        # What is shown never needs to be taken back.
        assert text[: match[0] if match else None].startswith(shown)
        if stop is not None:
            break
    if stop is None:
        shown += search.flush()
    assert (shown, stop) == ((text[: match[0]], match[1]) if match else (text, None))


def test_only_a_beginning_of_a_stop_string_is_held() -> None:
    search = StopStrings(["END", "\n\n"])
    assert search.push("one\n") == ("one", None)
    assert search.push("two") == ("\ntwo", None)
    assert search.push("EN") == ("", None)
    assert search.push("E") == ("EN", None)
    assert search.push("ND and more") == ("", "END")


def test_of_equal_starts_the_shorter_string_wins_and_of_equal_ends_the_longer() -> None:
    for stops in (["ab", "abc"], ["abc", "ab"]):
        assert StopStrings(stops).push("xabc") == ("x", "ab")
    for stops in (["bc", "abc"], ["abc", "bc"]):
        assert StopStrings(stops).push("xabc") == ("x", "abc")


def test_a_stop_string_that_the_flush_of_the_detokenizer_completes() -> None:
    detokenizer, search = Detokenizer(ByteTokenizer()), StopStrings(["a\ufffd"])
    assert search.push(detokenizer.push([98, 97, 0xC3])) == ("b", None)
    assert search.push(detokenizer.flush()) == ("", "a\ufffd")


def test_no_stop_strings_hold_nothing() -> None:
    search = StopStrings([])
    assert search.push("text") == ("text", None)
    assert search.flush() == ""
