# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What turns documents into arrays."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from dovetail_data.tokenizer import Tokenizer


@runtime_checkable
class Encoder(Protocol):
    """Documents to arrays. Must pickle, and must not depend on how documents are grouped."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Its vocab_size and fingerprint are recorded in the corpus."""
        ...

    @property
    def fingerprint(self) -> str:
        """Changes when the arrays of any document would."""
        ...

    def __call__(self, records: Sequence[dict[str, Any]]) -> list[dict[str, np.ndarray] | None]:
        """{"tokens": i32[n]} for each record, or None: dropped, and counted in the index."""
        ...
