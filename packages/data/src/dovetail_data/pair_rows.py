# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rows of preference pairs: a chosen answer and a rejected one, side by side."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Int64, UInt64

from dovetail_data.corpus import Corpus, CorruptDocument
from dovetail_data.rows import Arrays, Rows, Span
from dovetail_data.token_rows import require_field, require_fit, span_of


def pairs(corpus: Corpus, *, length: int) -> Rows:
    """Rows 2i chosen and 2i + 1 rejected of each pair, of `length` slots, the rest padding.

    A batch has `pair_ids` i32[B] beside the fields of text: the number of the pair, for both.
    The mask counts the answers alone. A global batch counts rows, two to a pair, and no pair is
    cut between hosts. ValueError for a pair of more than `length` (token, target) pairs.
    """
    return PairRows(corpus, length=length)


class PairRows(Rows):
    """What `pairs` returns: row i is pair i of the corpus, arrays of [2, length]."""

    unit = 2

    def __init__(self, corpus: Corpus, *, length: int) -> None:
        require_field(corpus, "chosen", "Write it with Preference.")
        require_fit(corpus, length)
        self.corpus = corpus
        self.length = length
        self.tokens = corpus.tokens - 2 * len(corpus)

    def __len__(self) -> int:
        return len(self.corpus)

    def identity(self, place: int) -> Mapping[str, str]:
        return {"corpus": self.corpus.fingerprint[:16], "rows": f"pairs/{self.length}"}

    def batch(
        self,
        rows: Int64[np.ndarray, "k"],
        *,
        keys: UInt64[np.ndarray, "k"] | None = None,
        corrupt: list[CorruptDocument] | None = None,
    ) -> Arrays:
        self._check(rows)
        shape = (2 * len(rows), self.length)
        tokens, targets, segment_ids, positions = np.zeros((4, *shape), np.int32)
        mask = np.zeros(shape, np.float32)
        for i, document in enumerate(self.corpus.read(rows, corrupt=corrupt)):
            if document is None:
                continue
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
        }

    def explain(self, row: int) -> list[Span]:
        self._check(np.array([row]))
        length = int(self.corpus.lengths[row]) - 1
        return [span_of(self.corpus, row, start=0, length=length)]
