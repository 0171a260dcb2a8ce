# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rows of fixed length over a corpus: an index of spans, and the arrays when a row is read."""

import dataclasses
import hashlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float32, Int32, Int64

from dovetail_data.batch import Batch
from dovetail_data.corpus import Corpus

Row = dict[str, Int32[np.ndarray, "S"] | Float32[np.ndarray, "S"]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Span:
    """`length` pairs of a document, from pair `start`. source: the part of the input it is from."""

    document: int
    start: int
    length: int
    source: str


@dataclasses.dataclass(frozen=True)
class SpanTable:
    """Spans of pairs, row after row: row r has spans [offsets[r], offsets[r + 1])."""

    document: Int32[np.ndarray, "spans"]
    start: Int32[np.ndarray, "spans"]
    length: Int32[np.ndarray, "spans"]
    offsets: Int64[np.ndarray, "rows1"]

    def of(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Indices of the spans of `rows`, and how many each row has."""
        sizes = self.offsets[rows + 1] - self.offsets[rows]
        before = np.cumsum(sizes) - sizes
        return np.repeat(self.offsets[rows] - before, sizes) + np.arange(sizes.sum()), sizes


class Rows:
    """What `pack` and `pad` return; a random-access source for Grain too.

    rows[i] is one row of the batch contract, arrays of [length]. fill: the fraction of slots that
    hold a pair. fingerprint: names the corpus and the packing; part of an iterator's state.
    """

    def __init__(self, corpus: Corpus, table: SpanTable, *, length: int) -> None:
        self.corpus = corpus
        self.length = length
        self._table = table
        self._positions = np.arange(length, dtype=np.int32)
        self.fill = float(table.length.sum(dtype=np.int64) / (len(self) * length))
        digest = hashlib.sha256(str(length).encode())
        for array in (table.document, table.start, table.length, table.offsets):
            digest.update(array.tobytes())
        self.fingerprint = f"corpus={corpus.fingerprint[:16]} rows={digest.hexdigest()[:16]}"

    def __len__(self) -> int:
        return len(self._table.offsets) - 1

    def __getitem__(self, row: int) -> Row:
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[Row]:
        batch = self.batch(np.asarray(rows, np.int64))
        return [{name: array[i] for name, array in batch.items()} for i in range(len(rows))]

    def batch(self, rows: Int64[np.ndarray, "B"]) -> Batch:
        """The rows as one batch [B, length]; the corpus is read once."""
        self._check(rows)
        spans, sizes = self._table.of(rows)
        lengths = self._table.length[spans]
        before = np.cumsum(lengths) - lengths
        first = np.cumsum(sizes) - sizes  # each row's first span; every row has one
        row_of_span = np.repeat(np.arange(len(rows)), sizes)
        slots = before - before[first][row_of_span] + row_of_span * self.length
        segments = np.arange(len(spans)) - first[row_of_span] + 1

        shape = (len(rows), self.length)
        tokens, targets, segment_ids, positions = np.zeros((4, *shape), np.int32)
        flat = [array.reshape(-1) for array in (tokens, targets, segment_ids, positions)]
        table = zip(
            self.corpus.read(self._table.document[spans]),
            self._table.start[spans].tolist(),
            lengths.tolist(),
            slots.tolist(),
            segments.tolist(),
            strict=True,
        )
        for ids, start, n, slot, segment in table:
            here = slice(slot, slot + n)
            flat[0][here] = ids[start : start + n]
            flat[1][here] = ids[start + 1 : start + n + 1]
            flat[2][here] = segment
            flat[3][here] = self._positions[:n]
        return {
            "tokens": tokens,
            "targets": targets,
            "mask": (segment_ids > 0).astype(np.float32),
            "segment_ids": segment_ids,
            "positions": positions,
        }

    def explain(self, row: int) -> list[Span]:
        """The spans of one row, in the order of its segment ids. Reads no ids."""
        self._check(np.array([row]))
        spans, _ = self._table.of(np.array([row]))
        return [
            Span(
                document=int(self._table.document[i]),
                start=int(self._table.start[i]),
                length=int(self._table.length[i]),
                source=self.corpus.source(int(self._table.document[i])),
            )
            for i in spans
        ]

    def _check(self, rows: np.ndarray) -> None:
        outside = (rows < 0) | (rows >= len(self))
        if outside.any():
            raise IndexError(
                f"a row must be in [0, {len(self)}): got row={rows[outside][0]}. "
                "Use range(len(rows))."
            )
