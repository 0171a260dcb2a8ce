# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rows of prompts, for sampling from a model."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int32

from dovetail_data import _elsewhere
from dovetail_data._arguments import require_integers
from dovetail_data.corpus.corpus import Corpus
from dovetail_data.rows.rows import Arrays, Rows, Span
from dovetail_data.rows.token_rows import DocumentRows, require_fit, span_of


@_elsewhere.pack
def prompts(corpus: Corpus, *, length: int) -> Rows:
    """Returns rows of one prompt each, with all its ids. The rest of a row is padding.

    A batch has `tokens`, `segment_ids` (1 for the prompt, 0 for padding), `positions` i32[B, S],
    `mask` f32[B, S] of zeros, because nothing is trained on, and `prompt_ids` i32[B].
    `rows.extra(prompt_ids)` returns the other fields of the records, such as the answer for a
    reward.

    Args:
        corpus: A corpus written with `Prompt`.
        length: Slots per row. Nothing is cut: a prompt of n ids needs n slots.

    Raises:
        TypeError: `corpus` is not a `Corpus`, such as a path.
        ValueError: The corpus has no prompts, or one does not fit.

    Example:

        >>> from pathlib import Path
        >>> from dovetail_data import Bytes, Prompt, jsonl, write
        >>> _ = Path("f.jsonl").write_text('{"prompt": "2+2?", "answer": 4}')
        >>> rows = prompts(write(jsonl("f.jsonl"), "prompts", encoder=Prompt(Bytes())), length=8)
        >>> rows[0]["tokens"], rows.extra([0])
        (array([256,  50,  43,  50,  63,   0,   0,   0], dtype=int32), [{'answer': 4}])
    """
    return PromptRows(corpus, length=length)


class PromptRows(DocumentRows):
    """Rows of prompts, as `prompts` returns them: row i is prompt i of the corpus."""

    def __init__(self, corpus: Corpus, *, length: int) -> None:
        needs = "extra", "Write it with Prompt."
        super().__init__(corpus, f"prompts/{length}", needs=needs, values=False)
        require_fit(corpus, length, targets=False)
        self.length = length
        self.tokens = corpus.tokens

    def extra(self, prompt_ids: Int32[np.ndarray, "k"] | Sequence[int]) -> list[dict[str, Any]]:
        """Returns the other fields of the records behind these prompts."""
        documents = self.corpus.__getitems__(require_integers("prompt_ids", prompt_ids).tolist())
        return [json.loads(document["extra"].tobytes()) for document in documents]

    def _stacked(
        self, rows: np.ndarray, documents: list[Arrays | None], keys: np.ndarray
    ) -> Arrays:
        tokens, segment_ids, positions = np.zeros((3, len(rows), self.length), np.int32)
        for i, document in enumerate(documents):
            if document is not None:
                n = len(document["tokens"])
                tokens[i, :n] = document["tokens"]
                segment_ids[i, :n] = 1
                positions[i, :n] = np.arange(n)
        return {
            "tokens": tokens,
            "segment_ids": segment_ids,
            "positions": positions,
            "mask": np.zeros(tokens.shape, np.float32),
            "prompt_ids": rows.astype(np.int32),
        }

    def explain(self, row: int) -> list[Span]:
        self._check_row(row)
        return [span_of(self.corpus, row, start=0, length=int(self.corpus.lengths[row]))]
