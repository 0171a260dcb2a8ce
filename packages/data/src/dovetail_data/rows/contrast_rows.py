# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rows for embedding models: the texts of a record, one to a row."""

import zlib

import numpy as np

from dovetail_data import _elsewhere
from dovetail_data.corpus.corpus import Corpus
from dovetail_data.encode.contrast import contrasted
from dovetail_data.rows.rows import Arrays, Rows, Span
from dovetail_data.rows.token_rows import DocumentRows, require_corpus, require_fit, span_of


@_elsewhere.pack
def contrasts(corpus: Corpus, *, length: int) -> Rows:
    """Returns rows of one text each. In a batch, rows n i to n (i + 1) - 1 are the n of a record.

    A batch has `tokens`, `segment_ids` (1 for the text, 0 for padding) and `positions` i32[B, S],
    and `group_ids` i32[B], equal for equal texts: those are no negatives of each other. A global
    batch counts rows, and no record is split between hosts. The rows of a damaged record are empty,
    as that of an absent negative.

    Args:
        corpus: A corpus written with `Contrast`.
        length: Slots per row. Nothing is cut: a text of n ids needs n slots.

    Raises:
        TypeError: `corpus` is not a `Corpus`, such as a path.
        ValueError: The corpus is of another encoder, or a text does not fit.

    Example:

        >>> from pathlib import Path
        >>> from dovetail_data import Bytes, Contrast, jsonl, write
        >>> _ = Path("g.jsonl").write_text('{"query": "2+2?", "positive": "4"}')
        >>> corpus = write(jsonl("g.jsonl"), "texts", encoder=Contrast(Bytes()))
        >>> contrasts(corpus, length=6)[0]["tokens"][1]
        array([256,  52, 257,   0,   0,   0], dtype=int32)
    """
    return ContrastRows(corpus, length=length)


class ContrastRows(DocumentRows):
    """Rows of texts, as `contrasts` returns them.

    Element i is record i, with arrays of [n, length].

    Attributes:
        texts: Names of the n texts.
    """

    def __init__(self, corpus: Corpus, *, length: int) -> None:
        require_corpus(corpus)
        self.texts = contrasted(corpus.manifest)
        needs = (*self.texts, "query")[0], "Write it with Contrast."
        # Saved states have this name: it is that of the encoder in the manifest.
        super().__init__(corpus, f"passages/{length}", needs=needs, values=False)
        require_fit(corpus, length, targets=False)
        self.length, self.unit, self.tokens = length, len(self.texts), corpus.tokens

    def _stacked(
        self, rows: np.ndarray, documents: list[Arrays | None], keys: np.ndarray
    ) -> Arrays:
        shape = (self.unit * len(rows), self.length)
        tokens, segment_ids, positions = np.zeros((3, *shape), np.int32)
        group_ids = np.zeros(shape[0], np.int32)
        for i, document in enumerate(documents):
            if document is None:
                continue
            for j, name in enumerate(self.texts):
                row, n = self.unit * i + j, len(document[name])
                tokens[row, :n] = document[name]
                segment_ids[row, :n] = 1
                positions[row, :n] = np.arange(n)
                group_ids[row] = zlib.crc32(tokens[row, :n].tobytes()) >> 1  # 31 bits
        fields = {"tokens": tokens, "segment_ids": segment_ids, "positions": positions}
        return fields | {"group_ids": group_ids}

    def explain(self, row: int) -> list[Span]:
        self._check_row(row)
        return [span_of(self.corpus, row, start=0, length=int(self.corpus.lengths[row]))]
