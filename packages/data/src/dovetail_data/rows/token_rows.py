# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rows of fixed length over a corpus of ids: an index of spans. A read fetches the ids."""

import abc
import dataclasses
import functools
import hashlib
import os
from collections.abc import Mapping

import numpy as np
from jaxtyping import Int32, Int64, UInt64

from dovetail_data._arguments import require_integer
from dovetail_data.corpus.corpus import Corpus, CorruptDocument
from dovetail_data.rows.rows import Arrays, Rows, Span, ValueFields


@dataclasses.dataclass(frozen=True)
class SpanTable:
    """Spans of documents, row after row: row r has spans [offsets[r], offsets[r + 1]).

    Attributes:
        document: Document of each span.
        start: First target of each span in its document.
        length: Targets of each span.
        offsets: First span of each row, and the number of spans at the end.
    """

    document: Int32[np.ndarray, "spans"]
    start: Int32[np.ndarray, "spans"]
    length: Int32[np.ndarray, "spans"]
    offsets: Int64[np.ndarray, "rows1"]

    def of(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the indices of the spans of `rows`, and the number of spans of each row."""
        sizes = self.offsets[rows + 1] - self.offsets[rows]
        before = np.cumsum(sizes) - sizes
        return np.repeat(self.offsets[rows] - before, sizes) + np.arange(sizes.sum()), sizes


class TokenRows(Rows):
    """Rows of tokens, as `pack` and `pad` return them: arrays of [length].

    If the encoder made a mask, it says which targets count. Without one, all do.

    Args:
        corpus: The documents.
        table: The spans of each row.
        length: Slots per row.
        whole: Whether each row is one whole document, which gives the row its values.
    """

    def __init__(self, corpus: Corpus, table: SpanTable, *, length: int, whole: bool) -> None:
        kind = "pad" if whole else "pack"
        self._values = ValueFields(corpus, rows=kind, per_record=whole, per_token=True)
        self.corpus = corpus
        self.length = length
        self._table = table
        self._masked = "mask" in corpus.fields
        self._positions = np.arange(length, dtype=np.int32)
        self.tokens = int(table.length.sum(dtype=np.int64))

    def __len__(self) -> int:
        return len(self._table.offsets) - 1

    @functools.cached_property
    def _digest(self) -> str:
        digest = hashlib.sha256(str(self.length).encode())
        table = self._table
        for array in (table.document, table.start, table.length, table.offsets):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()[:16]

    def identity(self, place: int) -> Mapping[str, str]:
        return {"corpus": self.corpus.fingerprint[:16], "rows": self._digest}

    def batch(
        self,
        rows: Int64[np.ndarray, "k"],
        *,
        keys: UInt64[np.ndarray, "k"] | None = None,
        corrupt: list[CorruptDocument] | None = None,
    ) -> Arrays:
        """Reads `rows` and stacks them to arrays of [k, length].

        A damaged document leaves its slots empty (mask, segment and ids 0); all others keep their
        place.

        Args:
            rows: Row numbers, i64[k], in any order.
            keys: Not used.
            corrupt: Receives damaged documents. None raises instead.
        """
        self._check(rows)
        spans, sizes = self._table.of(rows)
        lengths = self._table.length[spans].astype(np.int64)
        before = np.cumsum(lengths) - lengths
        first = np.cumsum(sizes) - sizes  # each row's first span; every row has one
        row_of_span = np.repeat(np.arange(len(rows)), sizes)
        slots = before - before[first][row_of_span] + row_of_span * self.length
        segments = np.arange(len(spans)) - first[row_of_span] + 1

        shape = (len(rows), self.length)
        tokens, targets, segment_ids, positions = np.zeros((4, *shape), np.int32)
        flat = [array.reshape(-1) for array in (tokens, targets, segment_ids, positions)]
        mask = np.zeros(shape, np.float32) if self._masked else None
        values = self._values.empty(len(rows), slots=self.length)
        table = zip(
            self.corpus.read(self._table.document[spans], corrupt=corrupt),
            self._table.start[spans].tolist(),
            lengths.tolist(),
            slots.tolist(),
            segments.tolist(),
            strict=True,
        )
        for document, start, n, slot, segment in table:
            if document is None:
                continue
            ids, span, end = document["tokens"], slice(slot, slot + n), start + n
            flat[0][span] = ids[start:end]
            flat[1][span] = ids[start + 1 : end + 1]
            flat[2][span] = segment
            flat[3][span] = self._positions[:n]
            if mask is not None:
                mask.reshape(-1)[span] = document["mask"][start + 1 : end + 1]
            for name in self._values.of_tokens:
                row, first_slot = divmod(slot, self.length)
                values[name][row, first_slot : first_slot + n] = document[name][start + 1 : end + 1]
            for name in self._values.of_records:
                values[name][slot // self.length] = document[name]
        return {
            "tokens": tokens,
            "targets": targets,
            "mask": (segment_ids > 0).astype(np.float32) if mask is None else mask,
            "segment_ids": segment_ids,
            "positions": positions,
            **values,
        }

    def explain(self, row: int) -> list[Span]:
        self._check_row(row)
        spans, _ = self._table.of(np.array([row]))
        columns = (self._table.document, self._table.start, self._table.length)
        return [
            span_of(self.corpus, document, start=start, length=length)
            for document, start, length in zip(*(c[spans].tolist() for c in columns), strict=True)
        ]


class DocumentRows(Rows):
    """Rows of whole documents: row i is document i of the corpus.

    Args:
        corpus: The documents.
        name: Name of the function that makes the rows, and their settings, for the identity.
        needs: A field of such documents, and the advice if it is missing.
        values: Whether a batch has the values of the records.
    """

    def __init__(self, corpus: Corpus, name: str, *, needs: tuple[str, str], values: bool) -> None:
        require_field(corpus, *needs)
        self.corpus = corpus
        self._name = name
        made_by = name.partition("/")[0]
        self._values = ValueFields(corpus, rows=made_by, per_record=values, per_token=False)

    def __len__(self) -> int:
        return len(self.corpus)

    def identity(self, place: int) -> Mapping[str, str]:
        return {"corpus": self.corpus.fingerprint[:16], "rows": self._name}

    def batch(
        self,
        rows: Int64[np.ndarray, "k"],
        *,
        keys: UInt64[np.ndarray, "k"] | None = None,
        corrupt: list[CorruptDocument] | None = None,
    ) -> Arrays:
        self._check(rows)
        documents = self.corpus.read(rows, corrupt=corrupt)
        return self._stacked(rows, documents, rows.astype(np.uint64) if keys is None else keys)

    @abc.abstractmethod
    def _stacked(
        self, rows: np.ndarray, documents: list[Arrays | None], keys: np.ndarray
    ) -> Arrays:
        """Returns the batch of these documents; None is a damaged one, which is masked."""


def span_of(corpus: Corpus, document: int, *, start: int, length: int) -> Span:
    """Returns the span of `length` targets of a document, with its origin in the input.

    Args:
        corpus: The corpus.
        document: Number of the document.
        start: First target.
        length: Number of targets.
    """
    source, record = corpus.source(document)
    return Span(document=document, start=start, length=length, source=source, record=record)


def require_corpus(corpus: object) -> None:
    """Raises TypeError unless `corpus` is one. The usual mistake is to pass its path."""
    if not isinstance(corpus, Corpus):
        path = repr(str(corpus)) if isinstance(corpus, str | os.PathLike) else "directory"
        raise TypeError(
            f"corpus must be a Corpus: got corpus={corpus!r:.200} of type "
            f"{type(corpus).__name__}. Pass Corpus({path}), or the result of write."
        )


def require_field(corpus: Corpus, field: str, remedy: str) -> None:
    """Raises TypeError or ValueError unless `corpus` is a corpus with `field`.

    Args:
        corpus: The corpus, as the user gave it.
        field: Name of the field.
        remedy: Advice for the message.
    """
    require_corpus(corpus)
    if field not in corpus.fields:
        raise ValueError(
            f"these rows need documents with the field {field!r}: got a corpus with "
            f"{list(corpus.fields)} in {corpus.directory}. {remedy}"
        )


def require_fit(corpus: Corpus, length: int, *, targets: bool = True) -> None:
    """Raises ValueError unless each document fits a row.

    Args:
        corpus: The corpus.
        length: Slots per row.
        targets: Whether slots hold tokens with targets. A document of n ids then needs n - 1 slots,
            and otherwise n.
    """
    require_integer("length", length, "Pass the slots per row, such as length=2048.", least=1)
    longest = int(corpus.lengths.argmax())
    needed = int(corpus.lengths[longest]) - (1 if targets else 0)
    if needed > length:
        source, record = corpus.source(longest)
        raise ValueError(
            f"a document must fit its row: got document={longest} (record {record} of {source}) "
            f"of {needed} slots, length={length}. Pass length={needed}, "
            "or write the corpus without its longest records."
        )
