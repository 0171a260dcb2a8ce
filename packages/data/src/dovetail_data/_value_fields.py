# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Values of documents in batches: those of records stacked, those of tokens in their slots."""

import numpy as np

from dovetail_data.corpus import Corpus
from dovetail_data.record import Field, as_dtype


class ValueFields:
    """The fields of `values` in a corpus.

    Args:
        corpus: The corpus.
        rows: Name of the function that makes the rows.
        per_record: Whether each row has one document, so that a record's values have a place.
        per_token: Whether rows have slots for the ids of `tokens` as targets.

    Raises:
        ValueError: The corpus has fields that these rows cannot hold.
    """

    def __init__(self, corpus: Corpus, *, rows: str, per_record: bool, per_token: bool) -> None:
        fields = {name: f for name, f in corpus.codec.layout.items() if f.shape is not None}
        self.of_records = {name: f for name, f in fields.items() if not f.per_token}
        self.of_tokens = {name: f for name, f in fields.items() if f.per_token}
        for held, names, remedy in (
            (per_record, self.of_records, "Make the rows with pad, or write"),
            (per_token, self.of_tokens, "Make the rows with pack or pad, or write"),
        ):
            if names and not held:
                kind = "record" if names is self.of_records else "token"
                raise ValueError(
                    f"rows of {rows} must not drop values: got the fields {sorted(names)}, one for "
                    f"each {kind}. {remedy} the corpus without them."
                )

    def empty(self, rows: int, *, slots: int) -> dict[str, np.ndarray]:
        """Returns zeros: [rows, ..] for the fields of records, [rows, slots, ..] for tokens."""
        return {
            **{name: _zeros((rows,), field) for name, field in self.of_records.items()},
            **{name: _zeros((rows, slots), field) for name, field in self.of_tokens.items()},
        }


def _zeros(leading: tuple[int, ...], field: Field) -> np.ndarray:
    return np.zeros((*leading, *(field.shape or ())), as_dtype(field.dtype))
