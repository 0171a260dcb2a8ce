# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Texts that belong together, for embedding models: their encoder, and rows of one text each.

A group is a query and its positive, and a hard negative if the records have one. Texts are whole:
the tokenizer's begin and end are around each, as a sentence encoder of transformers reads it.
"""

import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dovetail_data import Corpus, Corrupt, Document, Field, Pretrained, Span, ids
from dovetail_data.rows.rows import Arrays
from dovetail_data.rows.token_rows import DocumentRows, span_of
from dovetail_stack.recipes.records import Record


class Passages:
    """Encodes the texts of records: a `dovetail_data.Encoder` with a field of ids for each text.

    A last text that is absent or empty has no id; the others must be there.

    Args:
        tokenizer: The model's tokenizer.
        fields: Names of the query, the positive and optionally the hard negative.
    """

    def __init__(self, tokenizer: Pretrained, fields: Sequence[str]) -> None:
        self.tokenizer, self._fields = tokenizer, tuple(fields)
        self.layout: Mapping[str, Field] = {f: ids(tokenizer.vocab_size) for f in self._fields}
        self.manifest: Mapping[str, Any] = {
            "encoder": "passages",
            "tokenizer": tokenizer.fingerprint,
            "vocab_size": tokenizer.vocab_size,
            "fields": list(self._fields),
        }
        text = json.dumps(self.manifest, sort_keys=True)
        self.fingerprint = hashlib.sha256(text.encode()).hexdigest()

    def __call__(self, records: Sequence[Record]) -> list[Document | Corrupt | None]:
        return [self._encoded(record) for record in records]

    def _encoded(self, record: Record) -> Document | Corrupt:
        arrays = {}
        for i, name in enumerate(self._fields):
            text = record.get(name)
            if i == 2 and not text:
                arrays[name] = np.zeros(0, np.int32)
                continue
            if not isinstance(text, str) or not text:
                return Corrupt(
                    f"a record must have a text under {', '.join(self._fields[:2])}, got "
                    f"{name}={text!r:.60} with the fields {sorted(record)}: write it, or name "
                    "other fields by query= and positive="
                )
            (encoding,) = self.tokenizer.encode([text])
            bos = [] if self.tokenizer.bos_id is None else [self.tokenizer.bos_id]
            whole = [*bos, *encoding.ids.tolist(), self.tokenizer.eos_id]
            arrays[name] = np.array(whole, np.int32)
        return Document(arrays=arrays)


class PassageRows(DocumentRows):
    """Rows of one text each. In a batch, rows n i to n i + n - 1 are a group of n texts.

    A batch has tokens, segment_ids (0 for padding) and positions i32[B, length], and group_ids
    i32[B], equal for equal texts: such are no negatives of each other. The rows of a damaged record
    are empty.

    Args:
        corpus: Written with `Passages`.
        length: Slots per row; no text is longer.
        fields: Names of the texts.
    """

    def __init__(self, corpus: Corpus, *, length: int, fields: Sequence[str]) -> None:
        needs = fields[0], "Write it with Passages."
        super().__init__(corpus, f"passages/{length}", needs=needs, values=False)
        self.length, self.unit = length, len(fields)
        self.tokens, self._fields = corpus.tokens, tuple(fields)

    def _stacked(
        self, rows: np.ndarray, documents: list[Arrays | None], keys: np.ndarray
    ) -> Arrays:
        shape = (self.unit * len(rows), self.length)
        tokens, segment_ids, positions = np.zeros((3, *shape), np.int32)
        group_ids = np.zeros(shape[0], np.int32)
        for i, document in enumerate(documents):
            for j, name in enumerate(self._fields):
                text = np.zeros(0, np.int32) if document is None else document[name]
                row, n = self.unit * i + j, len(text)
                tokens[row, :n] = text
                segment_ids[row, :n] = 1
                positions[row, :n] = np.arange(n)
                group_ids[row] = zlib.crc32(tokens[row, :n].tobytes()) >> 1  # 31 bits
        fields = {"tokens": tokens, "segment_ids": segment_ids, "positions": positions}
        return fields | {"group_ids": group_ids}

    def explain(self, row: int) -> list[Span]:
        return [span_of(self.corpus, row, start=0, length=int(self.corpus.lengths[row]))]
