# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rows: what a batch is made of, by number, in any order, without an iterator."""

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Int32, Int64, UInt64

from dovetail_data.corpus import CorruptDocument
from dovetail_data.order import Order

Arrays: TypeAlias = dict[str, np.ndarray]
Draws: TypeAlias = Callable[[np.ndarray], np.ndarray]
"""Places i64[k] of an endless sequence -> the rows i64[k] that stand there."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Span:
    """`length` pairs of a document, from pair `start`.

    source, record: the part of the input that the document is from, and its place in that part.
    mixed: the name of its rows in the mixture, "" outside of one. An image has length 1.
    """

    document: int
    start: int
    length: int
    source: str
    record: int
    mixed: str = ""


_ALWAYS = 1 << 62  # a place that no run reaches


def joined(identity: Mapping[str, str]) -> str:
    """An identity in one line."""
    return " ".join(f"{name}={value}" for name, value in identity.items())


class Rows(abc.ABC):
    """Rows by number; a random-access source for Grain too.

    unit: how many rows of a batch each of them becomes: 1, and 2 for pairs. length: slots of a row.
    tokens: slots of all rows that hold a pair (an image is one).
    """

    unit: int = 1
    length: int
    tokens: int

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def batch(
        self,
        rows: Int64[np.ndarray, "k"],
        *,
        keys: UInt64[np.ndarray, "k"] | None = None,
        corrupt: list[CorruptDocument] | None = None,
    ) -> Arrays:
        """The rows as one batch; each array has `unit * k` rows.

        keys: of the random numbers that each row draws (`map`); by default the rows' own numbers.
        corrupt: what cannot be read is appended and masked; None raises CorruptError.
        """

    @abc.abstractmethod
    def explain(self, row: int) -> list[Span]:
        """The spans of one row, in the order of its segment ids. Reads no document."""

    @abc.abstractmethod
    def identity(self, place: int) -> Mapping[str, str]:
        """What the first `place` rows of any order of these rows depend on: names and digests.

        An iterator refuses the state of another identity and says by name what differs.
        """

    @property
    def fingerprint(self) -> str:
        """The whole identity in one line; equal for equal rows."""
        return joined(self.identity(_ALWAYS))

    @property
    def fill(self) -> float:
        """The fraction of slots that hold a pair."""
        return self.tokens / (len(self) * self.unit * self.length)

    @property
    def epoch(self) -> int | None:
        """Rows in an epoch; None where there is no such thing."""
        return len(self)

    def draws(self, seed: int | None) -> Draws:
        """The order in which an iterator takes the rows, epoch after epoch; None: as they are."""
        return Order(len(self), seed=seed)

    @property
    def sources(self) -> Mapping[str, "Rows"]:
        """What a mixture is made of; other rows are the one source "" of themselves."""
        return {"": self}

    def drawn(self, places: int) -> Mapping[str, int]:
        """How many of the first `places` rows of any order come from which source."""
        return {"": places}

    def extra(self, prompt_ids: Int32[np.ndarray, "k"] | Sequence[int]) -> list[dict[str, Any]]:
        """What else the records of `prompts` held; `prompt_ids` as in their batches."""
        raise ValueError(
            f"only prompts have fields beside their ids: got {type(self).__name__}. Make the rows "
            "with prompts."
        )

    def map(self, function: Callable[[Arrays, np.random.Generator], Arrays]) -> "Rows":
        """These rows changed one by one: function(row, rng) -> row, arrays without the batch axis.

        The generator depends on the seed of `batches` and the place of the row alone: the same on
        any number of hosts, another in each epoch. A state does not notice another function.
        """
        from dovetail_data.mapped_rows import MappedRows  # a subclass of this class

        return MappedRows(self, function)

    def __getitem__(self, row: int) -> Arrays:
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[Arrays]:
        return self._split(self.batch(np.asarray(rows, np.int64)))

    def _split(self, batch: Arrays) -> list[Arrays]:
        """A batch's rows one by one; a row of more than one unit keeps an axis for them."""
        count = len(next(iter(batch.values()))) // self.unit
        if self.unit == 1:
            return [{name: array[i, ...] for name, array in batch.items()} for i in range(count)]
        parts = [slice(i * self.unit, (i + 1) * self.unit) for i in range(count)]
        return [{name: array[part] for name, array in batch.items()} for part in parts]

    def _check(self, rows: np.ndarray) -> None:
        outside = (rows < 0) | (rows >= len(self))
        if outside.any():
            raise IndexError(
                f"a row must be in [0, {len(self)}): got row={rows[outside][0]}. "
                "Use range(len(rows))."
            )
