# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Ids to text, piece by piece. The pieces together are the text of all ids.

A character may be spread over several ids, and the text of an id alone may differ from its
contribution after others. A piece is therefore the text that more ids add to the text of all: one
id, or the few that share a character.
"""

import dataclasses
import json
from collections.abc import Iterator, Sequence

from dovetail_data.tokenizing.tokenizer import Bytes, Pretrained, Tokenizer

_FEW = 16  # ids whose prefixes are decoded one after the other; more are halved first
_CUTS = 16  # places tried for the cut: any character, and most words, end within as many ids


@dataclasses.dataclass(frozen=True, kw_only=True)
class Piece:
    """Ids that cannot be read apart, and their text.

    Args:
        ids: The ids.
        text: Their text.
        position: Position of the first id in its segment.
        mask: Loss weight of each as a target.
        special: Whether `text` is the name of a special token.
    """

    ids: tuple[int, ...]
    text: str
    position: int
    mask: float
    special: bool = False


class Reader:
    """Decodes ids with `tokenizer`, piece by piece."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._decode = tokenizer.decode
        self._names = special_names(tokenizer)

    def pieces(self, ids: Sequence[int], mask: Sequence[float]) -> tuple[Piece, ...]:
        """Returns the pieces of one segment, in order; every id is in one of them.

        Ids that share a character but not their mask are pieces of their own, U+FFFD in each.
        """
        return tuple(self._pieces(ids, mask))

    def _pieces(self, ids: Sequence[int], mask: Sequence[float]) -> Iterator[Piece]:
        i = 0
        for special, count in _runs([token in self._names for token in ids]):
            run = ids[i : i + count]
            texts = [(1, self._names[token]) for token in run] if special else self._apart(run)
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
        """Returns (number of ids, their text) of each piece of `ids`, none of them special."""
        whole = self._decode(ids)
        if len(ids) <= _FEW:
            return self._prefixes(ids, whole)
        middle = len(ids) // 2
        for cut in range(middle, min(middle + _CUTS, len(ids))):
            if self._decode(ids[:cut]) + self._decode(ids[cut:]) == whole:
                return self._apart(ids[:cut]) + self._apart(ids[cut:])
        return self._prefixes(ids, whole)

    def _prefixes(self, ids: Sequence[int], whole: str) -> list[tuple[int, str]]:
        """Returns the same by comparing the text of each prefix of `ids` with the text of all."""
        pieces: list[tuple[int, str]] = []
        settled, pending = 0, 0
        for end in range(1, len(ids) + 1):
            pending += 1
            text = self._decode(ids[:end])
            agreed = settled + _agreed(text[settled:], whole[settled:])
            if agreed > settled:
                pieces.append((pending, whole[settled:agreed]))
            elif pieces and agreed == len(text):  # adds nothing, nor begins a character
                count, last = pieces.pop()
                pieces.append((count + pending, last))
            else:
                continue
            settled, pending = agreed, 0
        return pieces + ([(pending, whole[settled:])] if pending else [])


def special_names(tokenizer: Tokenizer) -> dict[int, str]:
    """Returns the names of the special tokens, by id."""
    if isinstance(tokenizer, Pretrained):
        added = json.loads(tokenizer.content)["added_tokens"]
        return {token["id"]: token["content"] for token in added if token["special"]}
    names = ("<|bos|>", "<|eos|>") if isinstance(tokenizer, Bytes) else ("bos", "eos")
    specials = zip((tokenizer.bos_id, tokenizer.eos_id), names, strict=True)
    return {token: name for token, name in specials if token is not None}


def _agreed(a: str, b: str) -> int:
    """Returns the number of characters with which both `a` and `b` begin."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))


def _runs(values: Sequence[bool]) -> Iterator[tuple[bool, int]]:
    """Yields (value, length) of each run of equal values."""
    begin = 0
    for i in range(1, len(values) + 1):
        if i == len(values) or values[i] != values[begin]:
            yield values[begin], i - begin
            begin = i
