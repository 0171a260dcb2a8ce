# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Plain text for pretraining."""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from dovetail_data.tokenizer import Tokenizer


class Text:
    """bos (where the tokenizer has one) + ids + eos of each record's "text".

    A record without a character is dropped: it has nothing to predict.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.fingerprint = hashlib.sha256(f"text/{tokenizer.fingerprint}".encode()).hexdigest()

    def __call__(self, records: Sequence[dict[str, Any]]) -> list[dict[str, np.ndarray] | None]:
        bos = [] if self.tokenizer.bos_id is None else [self.tokenizer.bos_id]
        before, after = np.array(bos, np.int32), np.array([self.tokenizer.eos_id], np.int32)
        texts = [record["text"] for record in records]
        return [
            {"tokens": np.concatenate([before, encoding.ids, after])} if text else None
            for text, encoding in zip(texts, self.tokenizer.encode(texts), strict=True)
        ]
