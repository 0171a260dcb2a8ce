# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The index of packed rows: which pieces of which documents lie in each."""

import dataclasses

import numpy as np
from jaxtyping import Int32, Int64


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
