# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rows changed by a function, with random numbers that depend on nothing but the row's place."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Int32, Int64, UInt64

from dovetail_data.corpus import CorruptDocument
from dovetail_data.rows import Arrays, Draws, Rows, Span

Function: TypeAlias = Callable[[Arrays, np.random.Generator], Arrays]


def generator(key: int) -> np.random.Generator:
    """Random numbers drawn by `key` alone (Philox; Salmon et al. 2011)."""
    return np.random.Generator(np.random.Philox(key=key))


class MappedRows(Rows):
    """What `Rows.map` returns: function(row, rng) in the place of each row of `rows`."""

    def __init__(self, rows: Rows, function: Function) -> None:
        self.rows = rows
        self._function = function
        self.unit = rows.unit
        self.length = rows.length
        self.tokens = rows.tokens

    def __len__(self) -> int:
        return len(self.rows)

    def batch(
        self,
        rows: Int64[np.ndarray, "k"],
        *,
        keys: UInt64[np.ndarray, "k"] | None = None,
        corrupt: list[CorruptDocument] | None = None,
    ) -> Arrays:
        chosen = rows.astype(np.uint64) if keys is None else keys
        batch = self.rows.batch(rows, keys=chosen, corrupt=corrupt)
        if not len(rows):
            like = self.batch(np.array([0]), corrupt=[])
            return {name: array[:0] for name, array in like.items()}
        each = [
            self._function(row, generator(key))
            for row, key in zip(self._split(batch), chosen.tolist(), strict=True)
        ]
        join = np.stack if self.unit == 1 else np.concatenate
        return {name: join([row[name] for row in each]) for name in each[0]}

    def explain(self, row: int) -> list[Span]:
        return self.rows.explain(row)

    def identity(self, place: int) -> Mapping[str, str]:
        return self.rows.identity(place)

    @property
    def epoch(self) -> int | None:
        return self.rows.epoch

    @property
    def sources(self) -> Mapping[str, Rows]:
        found = self.rows.sources
        return {"": self} if set(found) == {""} else found

    def extra(self, prompt_ids: Int32[np.ndarray, "k"] | Sequence[int]) -> list[dict[str, Any]]:
        return self.rows.extra(prompt_ids)

    def draws(self, seed: int | None) -> Draws:
        return self.rows.draws(seed)

    def drawn(self, places: int) -> Mapping[str, int]:
        return self.rows.drawn(places)
