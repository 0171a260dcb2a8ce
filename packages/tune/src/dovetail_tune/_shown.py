# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rows as documents of pieces: runs of ids that do or do not carry loss, with their text.

A character may be spread over several ids, and many tokenizers drop the space before the first
word. The text of a piece is therefore the text that its ids add to that of all ids before them.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np


@runtime_checkable
class Tokenizer(Protocol):
    """Ids to text: a tokenizer of `dovetail_data` or of transformers, or any like them.

    With `bos_id` and `eos_id`, these ids are shown by their names.
    """

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text. Special ids may add nothing."""
        ...


@runtime_checkable
class _Named(Protocol):
    @property
    def bos_id(self) -> int | None: ...
    @property
    def eos_id(self) -> int | None: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Piece:
    """Consecutive ids of a document that carry loss, or that do not.

    Attributes:
        ids: The ids.
        text: Their text, or the name of a special id. None without a tokenizer.
        trained: Whether their predictions carry loss.
        special: Whether this is one id without a text.
    """

    ids: tuple[int, ...]
    text: str | None
    trained: bool
    special: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShownRow:
    """One row of a batch.

    Attributes:
        row: Number of the row.
        role: "chosen" or "rejected" in a batch of pairs, else "".
        tokens: Slots that hold a token.
        trained: Targets that carry loss.
        padding: Slots without a token.
        documents: Pieces of each document.
        values: Fields of one number a row.
    """

    row: int
    role: str
    tokens: int
    trained: int
    padding: int
    documents: tuple[tuple[Piece, ...], ...]
    values: dict[str, int | float | str]


def runs_of(arrays: dict[str, np.ndarray], row: int) -> list[tuple[int, int]]:
    """Returns the slots [start, stop) of each document of a row: runs of equal segment_ids."""
    length = arrays["tokens"].shape[1]
    if "segment_ids" not in arrays:
        return [(0, length)]
    segments = arrays["segment_ids"][row]
    cuts = [0, *(np.flatnonzero(np.diff(segments)) + 1).tolist(), length]
    return [(a, b) for a, b in itertools.pairwise(cuts) if segments[a] > 0]


def ids_of(
    arrays: dict[str, np.ndarray], row: int, start: int, stop: int
) -> tuple[list[int], list[bool]]:
    """Returns the ids of a document and whether the prediction of each carries loss.

    A document of n slots has n + 1 ids if its targets are known. The first is never predicted.
    Targets that do not count may be any number, so the tokens stand for them.

    Args:
        arrays: The batch.
        row: Number of the row.
        start: First slot of the document.
        stop: Slot after its last.
    """
    tokens = arrays["tokens"][row, start:stop].tolist()
    if "targets" not in arrays:
        return tokens, [False] * len(tokens)
    targets = arrays["targets"][row, start:stop].tolist()
    counts = (arrays["mask"][row, start:stop].astype(np.float32) > 0).tolist()
    nexts = [*tokens[1:], targets[-1]]
    ids = [
        target if count else token
        for target, token, count in zip(targets, nexts, counts, strict=True)
    ]
    if ids[-1] < 0 and not counts[-1]:  # the last target is unknown
        ids, counts = ids[:-1], counts[:-1]
    return [tokens[0], *ids], [False, *counts]


class Pieces:
    """Rows as pieces.

    Args:
        tokenizer: Decodes the ids, or None.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._names: dict[int, str] = {}
        self.eos_id: int | None = None
        if isinstance(tokenizer, _Named):
            self.eos_id = tokenizer.eos_id
            named = {"bos": tokenizer.bos_id, "eos": tokenizer.eos_id}
            self._names = {i: name for name, i in named.items() if i is not None}

    def row(self, arrays: dict[str, np.ndarray], row: int) -> ShownRow:
        """Returns one row of a batch.

        Args:
            arrays: The batch.
            row: Number of the row.
        """
        runs = runs_of(arrays, row)
        documents = [ids_of(arrays, row, start, stop) for start, stop in runs]
        tokens = sum(stop - start for start, stop in runs)
        return ShownRow(
            row=row,
            role=("chosen", "rejected")[row % 2] if "pair_ids" in arrays else "",
            tokens=tokens,
            trained=sum(sum(counts) for _, counts in documents),
            padding=arrays["tokens"].shape[1] - tokens,
            documents=tuple(tuple(self._pieces(ids, counts)) for ids, counts in documents),
            values={name: x[row].item() for name, x in arrays.items() if x.ndim == 1},
        )

    def _pieces(self, ids: list[int], counts: list[bool]) -> Iterator[Piece]:
        special = self._special(ids)
        # A special id is a piece of its own.
        kinds = [(count, i if i in special else None) for i, count in zip(ids, counts, strict=True)]
        start, before = 0, ""
        for (trained, name), run in itertools.groupby(kinds):
            stop = start + len(list(run))
            text = None
            if self._tokenizer is not None and name is None:
                whole = self._tokenizer.decode(ids[:stop])
                # A character that two pieces share is U+FFFD in each.
                apart = not whole.startswith(before)
                text = self._tokenizer.decode(ids[start:stop]) if apart else whole[len(before) :]
                before = whole
            if name is None:
                yield Piece(ids=tuple(ids[start:stop]), text=text, trained=trained)
            else:
                piece = Piece(ids=(name,), text=special[name], trained=trained, special=True)
                yield from itertools.repeat(piece, stop - start)
            start = stop

    def _special(self, ids: list[int]) -> dict[int, str]:
        """Returns the names of the ids that add no text, by id."""
        tokenizer: Any = self._tokenizer
        if tokenizer is None:
            return {}
        own = {i: tokenizer.decode([i]) for i in dict.fromkeys(ids)}
        # The id of a space adds no text at the start of one, but does after another id.
        word = next((i for i, text in own.items() if text), None)
        silent = [i for i, text in own.items() if not text]
        if word is not None:
            silent = [i for i in silent if tokenizer.decode([word, i]) == own[word]]
        return {i: self._names.get(i, str(i)) for i in silent}
