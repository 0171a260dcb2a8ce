# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Random-access rows. A batch is a stack of rows."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Int32, Int64, UInt64

from dovetail_data._arguments import require_integer, require_integers, wrong
from dovetail_data.corpus.corpus import Corpus, CorruptDocument
from dovetail_data.record import Field, as_dtype
from dovetail_data.rows.order import Order

Arrays: TypeAlias = dict[str, np.ndarray]
Draws: TypeAlias = Callable[[np.ndarray], np.ndarray]
"""Maps places i64[k] of an endless sequence to their rows i64[k]."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Span:
    """A run of consecutive targets of one document.

    Attributes:
        document: Number of the document in its corpus.
        start: Number of the first target, counted from 0; target i is id i + 1 of the document.
        length: Number of targets. 1 for an image.
        source: Name of the input part with the document, such as "a/b.txt".
        record: Place of the record in that part.
        mixed: Name of the rows in the mixture; "" without a mixture.
    """

    document: int
    start: int
    length: int
    source: str
    record: int
    mixed: str = ""


_ALWAYS = 1 << 62  # a place that no run reaches


def joined(identity: Mapping[str, str]) -> str:
    """Returns an identity in one line."""
    return " ".join(f"{name}={value}" for name, value in identity.items())


def require_rows(rows: object, name: str = "rows") -> None:
    """Raises TypeError unless `rows` are rows. The usual mistake is to pass a corpus."""
    if not isinstance(rows, Rows):
        raise TypeError(
            f"{name} must be Rows: got {name}={rows!r:.200} of type {type(rows).__name__}. Pass "
            "pack(corpus, length=...), or the result of pad, pairs, prompts, images or mix."
        )


class Rows(abc.ABC):
    """A finite sequence of training rows with random access. Also a Grain random-access source.

    `pack`, `pad`, `pairs`, `prompts`, `contrasts`, `images` and `mix` return rows. `len(rows)`
    counts them, and `rows[i]` reads one as a dictionary of arrays.

    Attributes:
        unit: Batch rows per element: 1, or the texts of a record: 2 for preference pairs.
        length: Slots per row.
        tokens: Filled slots, summed over all rows. An image counts as one.
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
        """Reads `rows` and stacks them.

        Args:
            rows: Row numbers, i64[k], in any order.
            keys: Random keys for `map`, u64[k]. Default: the row numbers.
            corrupt: Receives damaged documents, which are masked in the batch. None raises instead.

        Returns:
            Arrays by field name, each with `unit * k` rows.

        Raises:
            IndexError: A row number is out of range.
            CorruptError: A document is damaged and `corrupt` is None.
        """

    @abc.abstractmethod
    def explain(self, row: int) -> list[Span]:
        """Returns the spans of one row, in the order of its segment ids. Reads no document."""

    @abc.abstractmethod
    def identity(self, place: int) -> Mapping[str, str]:
        """Returns names and digests of all inputs to the first `place` rows of an order.

        An iterator refuses a saved state with another identity and names the entry that differs.
        """

    @property
    def fingerprint(self) -> str:
        """The whole identity in one line. Equal for equal rows."""
        return joined(self.identity(_ALWAYS))

    @property
    def fill(self) -> float:
        """The fraction of slots that are filled."""
        return self.tokens / (len(self) * self.unit * self.length)

    @property
    def epoch(self) -> int | None:
        """Rows in an epoch. None for a mixture without an end."""
        return len(self)

    def draws(self, seed: int | None) -> Draws:
        """Returns the order in which an iterator takes the rows, epoch after epoch.

        `seed=None` keeps them in order.
        """
        return Order(len(self), seed=seed)

    @property
    def sources(self) -> Mapping[str, "Rows"]:
        """The sources of a mixture by name. Other rows are one source, named ""."""
        return {"": self}

    def drawn(self, places: int) -> Mapping[str, int]:
        """Returns the number of rows from each source among the first `places` of any order."""
        return {"": places}

    def extra(self, prompt_ids: Int32[np.ndarray, "k"] | Sequence[int]) -> list[dict[str, Any]]:
        """Returns the other fields of the records behind prompts. Only for rows from `prompts`.

        `prompt_ids` are those of a batch.
        """
        raise ValueError(
            f"only prompts have fields beside their ids: got {type(self).__name__}. Make the rows "
            "with prompts."
        )

    def map(self, function: Callable[[Arrays, np.random.Generator], Arrays]) -> "Rows":
        """Returns these rows changed one by one.

        `function(row, rng)` receives and returns a dictionary of arrays without the batch axis; a
        preference pair keeps an axis of 2. All results must have one shape and dtype. The generator
        depends on the seed of `batches` and the row's place in the order alone: the same on any
        number of hosts, another in each epoch. The fingerprint does not include `function`, so a
        resumed run does not notice another one.
        """
        if not callable(function):
            raise wrong("function", "a function", function, "Pass one of (row, rng).")
        return MappedRows(self, function)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rows={len(self):,}, length={self.length}, {self._details()})"

    def _details(self) -> str:
        return f"fill={self.fill:.4f}"

    def __getitem__(self, row: int) -> Arrays:
        require_integer("row", row, "Use range(len(rows)).")
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[Arrays]:
        return self._split(self.batch(require_integers("rows", rows)))

    def _split(self, batch: Arrays) -> list[Arrays]:
        """Splits a batch into its elements; with `unit` 2, each keeps an axis of 2."""
        count = len(next(iter(batch.values()))) // self.unit
        if self.unit == 1:
            return [{name: array[i, ...] for name, array in batch.items()} for i in range(count)]
        ranges = [slice(i * self.unit, (i + 1) * self.unit) for i in range(count)]
        return [{name: array[rows] for name, array in batch.items()} for rows in ranges]

    def _check_row(self, row: int) -> None:
        require_integer("row", row, "Use range(len(rows)).")
        self._check(np.array([row]))

    def _check(self, rows: np.ndarray) -> None:
        if not isinstance(rows, np.ndarray) or rows.dtype.kind not in "iu":
            raise wrong("rows", "an integer array", rows, "Pass numpy.arange(8), or one integer.")
        outside = (rows < 0) | (rows >= len(self))
        if outside.any():
            raise IndexError(
                f"a row must be in [0, {len(self)}): got row={rows[outside][0]}. "
                "Use range(len(rows))."
            )


class ValueFields:
    """The fields of `values` in a corpus.

    Args:
        corpus: The corpus.
        rows: Name of the function that makes the rows.
        per_record: Whether each row has one document, so that a record's values have a place.
        per_token: Whether rows have slots for the ids of `tokens` as targets.

    Raises:
        ValueError: The corpus has fields that these rows cannot hold.
    """

    def __init__(self, corpus: Corpus, *, rows: str, per_record: bool, per_token: bool) -> None:
        fields = {name: f for name, f in corpus.codec.layout.items() if f.shape is not None}
        self.of_records = {name: f for name, f in fields.items() if not f.per_token}
        self.of_tokens = {name: f for name, f in fields.items() if f.per_token}
        for held, names, remedy in (
            (per_record, self.of_records, "Make the rows with pad, or write"),
            (per_token, self.of_tokens, "Make the rows with pack or pad, or write"),
        ):
            if names and not held:
                kind = "record" if names is self.of_records else "token"
                raise ValueError(
                    f"rows of {rows} must not drop values: got the fields {sorted(names)}, one for "
                    f"each {kind}. {remedy} the corpus without them."
                )

    def empty(self, rows: int, *, slots: int) -> dict[str, np.ndarray]:
        """Returns zeros: [rows, ..] for the fields of records, [rows, slots, ..] for tokens."""
        return {
            **{name: _zeros((rows,), field) for name, field in self.of_records.items()},
            **{name: _zeros((rows, slots), field) for name, field in self.of_tokens.items()},
        }


def _zeros(leading: tuple[int, ...], field: Field) -> np.ndarray:
    return np.zeros((*leading, *(field.shape or ())), as_dtype(field.dtype))


def generator(key: int) -> np.random.Generator:
    """Returns a generator seeded by `key` alone (Philox; Salmon et al. 2011)."""
    return np.random.Generator(np.random.Philox(key=key))


class MappedRows(Rows):
    """Rows changed by a function, as `Rows.map` returns them.

    The function's random numbers depend on the row's place alone.
    """

    def __init__(
        self, rows: Rows, function: Callable[[Arrays, np.random.Generator], Arrays]
    ) -> None:
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
