# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rows changed by a function. Its random numbers depend on the row's place alone."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Int32, Int64, UInt64

from dovetail_data.corpus import CorruptDocument
from dovetail_data.rows import Arrays, Draws, Rows, Span

Function: TypeAlias = Callable[[Arrays, np.random.Generator], Arrays]


def generator(key: int) -> np.random.Generator:
    """Returns a generator seeded by `key` alone (Philox; Salmon et al. 2011)."""
    return np.random.Generator(np.random.Philox(key=key))


class MappedRows(Rows):
    """Rows changed by a function, as `Rows.map` returns them."""

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
        self._check(rows)
        row_keys = rows.astype(np.uint64) if keys is None else keys
        batch = self.rows.batch(rows, keys=row_keys, corrupt=corrupt)
        if not len(rows):
            like = self.batch(np.array([0]), corrupt=[])
            return {name: array[:0] for name, array in like.items()}
        each = [
            self._function(row, generator(key))
            for row, key in zip(self._split(batch), row_keys.tolist(), strict=True)
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
        sources = self.rows.sources
        return {"": self} if set(sources) == {""} else sources

    def extra(self, prompt_ids: Int32[np.ndarray, "k"] | Sequence[int]) -> list[dict[str, Any]]:
        return self.rows.extra(prompt_ids)

    def draws(self, seed: int | None) -> Draws:
        return self.rows.draws(seed)

    def drawn(self, places: int) -> Mapping[str, int]:
        return self.rows.drawn(places)
