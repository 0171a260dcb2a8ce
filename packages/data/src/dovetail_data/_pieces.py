# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Ids to text, piece by piece, so that the pieces together are the text of all.

A character may be spread over several ids, and what an id alone decodes to may differ from what it
adds to those before it. So a piece is what more ids add to the text of all: one id, or the few that
share a character.
"""

import dataclasses
import json
from collections.abc import Iterator, Sequence

from dovetail_data.tokenizer import Bytes, Pretrained, Tokenizer

_FEW = 16  # ids whose prefixes are decoded one after the other; more are halved first
_CUTS = 16  # places tried for the cut: any character, and most words, end within as many ids


@dataclasses.dataclass(frozen=True, kw_only=True)
class Piece:
    """`ids` that cannot be read apart, and their text.

    position: of the first of them in its segment. mask: the loss weight of each as a target.
    special: text is the name of a token that stands for no text.
    """

    ids: tuple[int, ...]
    text: str
    position: int
    mask: float
    special: bool = False


class Reader:
    """Reads ids with `tokenizer`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._decode = tokenizer.decode
        self._names = special_names(tokenizer)

    def pieces(self, ids: Sequence[int], mask: Sequence[float]) -> tuple[Piece, ...]:
        """The pieces of one segment, in order; every id is in one of them.

        Ids that share a character but not their mask are pieces of their own, U+FFFD in each.
        """
        return tuple(self._pieces(ids, mask))

    def _pieces(self, ids: Sequence[int], mask: Sequence[float]) -> Iterator[Piece]:
        i = 0
        for special, count in _runs([one in self._names for one in ids]):
            run = ids[i : i + count]
            texts = [(1, self._names[one]) for one in run] if special else self._apart(run)
            for size, text in texts:
                weights = set(mask[i : i + size])
                alone = size > 1 and len(weights) > 1
                for k in range(size if alone else 1):
                    yield Piece(
                        ids=(ids[i + k],) if alone else tuple(ids[i : i + size]),
                        text=(self._decode([ids[i + k]]) or "\ufffd") if alone else text,
                        position=i + k,
                        mask=mask[i + k],
                        special=special,
                    )
                i += size

    def _apart(self, ids: Sequence[int]) -> list[tuple[int, str]]:
        """(how many ids, their text) of each piece of `ids`, none of which is special."""
        whole = self._decode(ids)
        if len(ids) <= _FEW:
            return self._prefixes(ids, whole)
        middle = len(ids) // 2
        for cut in range(middle, min(middle + _CUTS, len(ids))):
            if self._decode(ids[:cut]) + self._decode(ids[cut:]) == whole:
                return self._apart(ids[:cut]) + self._apart(ids[cut:])
        return self._prefixes(ids, whole)

    def _prefixes(self, ids: Sequence[int], whole: str) -> list[tuple[int, str]]:
        """The same by what each prefix of `ids` has in common with the text of all."""
        found: list[tuple[int, str]] = []
        settled, pending = 0, 0
        for end in range(1, len(ids) + 1):
            pending += 1
            text = self._decode(ids[:end])
            agreed = settled + _agreed(text[settled:], whole[settled:])
            if agreed > settled:
                found.append((pending, whole[settled:agreed]))
            elif found and agreed == len(text):  # adds nothing, nor begins a character
                count, last = found.pop()
                found.append((count + pending, last))
            else:
                continue
            settled, pending = agreed, 0
        return found + ([(pending, whole[settled:])] if pending else [])


def special_names(tokenizer: Tokenizer) -> dict[int, str]:
    if isinstance(tokenizer, Pretrained):
        added = json.loads(tokenizer.content)["added_tokens"]
        return {one["id"]: one["content"] for one in added if one["special"]}
    names = ("<|bos|>", "<|eos|>") if isinstance(tokenizer, Bytes) else ("bos", "eos")
    found = zip((tokenizer.bos_id, tokenizer.eos_id), names, strict=True)
    return {one: name for one, name in found if one is not None}


def _agreed(a: str, b: str) -> int:
    """How many characters `a` and `b` begin with alike."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))


def _runs(values: Sequence[bool]) -> Iterator[tuple[bool, int]]:
    """(value, how often) of each run of equal values."""
    begin = 0
    for i in range(1, len(values) + 1):
        if i == len(values) or values[i] != values[begin]:
            yield values[begin], i - begin
            begin = i
