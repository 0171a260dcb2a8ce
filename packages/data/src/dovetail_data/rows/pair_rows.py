# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rows of preference pairs: a chosen answer and a rejected one, side by side."""

import numpy as np

from dovetail_data import _elsewhere
from dovetail_data.corpus.corpus import Corpus
from dovetail_data.rows.rows import Arrays, Rows, Span
from dovetail_data.rows.token_rows import DocumentRows, require_fit, span_of


@_elsewhere.pack
def pairs(corpus: Corpus, *, length: int) -> Rows:
    """Returns rows of preference pairs. In a batch, rows 2i and 2i + 1 are chosen and rejected.

    A batch has the fields of text and `pair_ids` i32[B], the number of the pair, equal for both
    rows, as the `fields` of the encoder are. The mask counts the answers alone. A global batch
    counts rows, two to a pair, and no pair is split between hosts.

    Args:
        corpus: A corpus written with `Preference`.
        length: Slots per row. Nothing is cut: an answer of n ids with its prompt needs n - 1 slots.

    Raises:
        TypeError: `corpus` is not a `Corpus`, such as a path.
        ValueError: The corpus has no pairs, or one does not fit.

    Example:

        >>> from pathlib import Path
        >>> from dovetail_data import Bytes, Preference, jsonl, write
        >>> _ = Path("e.jsonl").write_text('{"prompt": "2+2?", "chosen": "4", "rejected": "5"}')
        >>> corpus = write(jsonl("e.jsonl"), "answers", encoder=Preference(Bytes()))
        >>> pairs(corpus, length=8)[0]["mask"][0]
        array([0., 0., 0., 0., 1., 1., 0., 0.], dtype=float32)
    """
    return PairRows(corpus, length=length)


class PairRows(DocumentRows):
    """Rows of preference pairs, as `pairs` returns them.

    Element i is pair i, with arrays of [2, length].
    """

    unit = 2

    def __init__(self, corpus: Corpus, *, length: int) -> None:
        needs = "chosen", "Write it with Preference."
        super().__init__(corpus, f"pairs/{length}", needs=needs, values=True)
        require_fit(corpus, length)
        self.length = length
        self.tokens = corpus.tokens - 2 * len(corpus)

    def _stacked(
        self, rows: np.ndarray, documents: list[Arrays | None], keys: np.ndarray
    ) -> Arrays:
        shape = (2 * len(rows), self.length)
        tokens, targets, segment_ids, positions = np.zeros((4, *shape), np.int32)
        mask = np.zeros(shape, np.float32)
        values = self._values.empty(shape[0], slots=self.length)
        for i, document in enumerate(documents):
            if document is None:
                continue
            for name, array in values.items():
                array[2 * i : 2 * i + 2] = document[name]
            for j, name in ((2 * i, "chosen"), (2 * i + 1, "rejected")):
                ids = document[name]
                n = len(ids) - 1
                tokens[j, :n] = ids[:-1]
                targets[j, :n] = ids[1:]
                mask[j, :n] = document[f"{name}_mask"][1:]
                segment_ids[j, :n] = 1
                positions[j, :n] = np.arange(n)
        return {
            "tokens": tokens,
            "targets": targets,
            "mask": mask,
            "segment_ids": segment_ids,
            "positions": positions,
            "pair_ids": np.repeat(rows.astype(np.int32), 2),
            **values,
        }

    def explain(self, row: int) -> list[Span]:
        self._check_row(row)
        length = int(self.corpus.lengths[row]) - 1
        return [span_of(self.corpus, row, start=0, length=length)]
