# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The index of packed rows: the spans of documents in each row."""

import dataclasses

import numpy as np
from jaxtyping import Int32, Int64


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
