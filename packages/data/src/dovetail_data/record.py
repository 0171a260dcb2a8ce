# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""How a document lies in a record: its ids as one raw little-endian array, nothing else.

uint16 where the vocabulary allows it. A self-describing blob per record would cost its header once
per document; index.json names the layout once.
"""

import dataclasses

import numpy as np
from jaxtyping import Int32


@dataclasses.dataclass(frozen=True, kw_only=True)
class Raw:
    """The codec `raw`: `field` as an array of `dtype` ("<u2" or "<u4")."""

    field: str
    dtype: str

    @classmethod
    def of(cls, vocab_size: int) -> "Raw":
        """The smallest layout that holds every id below vocab_size."""
        return cls(field="tokens", dtype="<u2" if vocab_size <= 1 << 16 else "<u4")

    @property
    def itemsize(self) -> int:
        return np.dtype(self.dtype).itemsize

    def encode(self, ids: Int32[np.ndarray, "n"]) -> bytes:
        return ids.astype(self.dtype).tobytes()

    def view(self, record: bytes) -> np.ndarray:
        """The ids of a record as stored, without a copy: read-only, [n] of `dtype`."""
        return np.frombuffer(record, self.dtype)
