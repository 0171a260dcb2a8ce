# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Plain text for pretraining."""

import hashlib
from collections.abc import Sequence

import numpy as np

from dovetail_data.encode.encoder import Document
from dovetail_data.record import ids
from dovetail_data.sources.source import Corrupt, Record
from dovetail_data.tokenizer import Tokenizer


class Text:
    """bos (where the tokenizer has one) + ids + eos of the string under `field` of each record.

    A record whose text is empty is dropped: it has nothing to predict.
    """

    def __init__(self, tokenizer: Tokenizer, *, field: str = "text") -> None:
        self.tokenizer = tokenizer
        self.field = field
        self.layout = {"tokens": ids(tokenizer.vocab_size)}
        self.manifest = {"encoder": "text", "field": field, "tokenizer": tokenizer.fingerprint}
        kind = f"text/{field}/{tokenizer.fingerprint}"
        self.fingerprint = hashlib.sha256(kind.encode()).hexdigest()

    def __call__(self, records: Sequence[Record]) -> list[Document | Corrupt | None]:
        out: list[Document | Corrupt | None] = []
        kept: list[tuple[int, int]] = []
        for i, record in enumerate(records):
            found = self._text_bytes(record)
            out.append(found if isinstance(found, Corrupt) else None)
            if isinstance(found, int) and found > 0:
                kept.append((i, found))
        encodings = self.tokenizer.encode([records[i][self.field] for i, _ in kept])
        bos = [] if self.tokenizer.bos_id is None else [self.tokenizer.bos_id]
        before, after = np.array(bos, np.int32), np.array([self.tokenizer.eos_id], np.int32)
        for (i, size), encoding in zip(kept, encodings, strict=True):
            tokens = np.concatenate([before, encoding.ids, after])
            out[i] = Document(arrays={"tokens": tokens}, text_bytes=size)
        return out

    def _text_bytes(self, record: Record) -> int | Corrupt:
        """The UTF-8 bytes of a record's text, or what is wrong with it."""
        text = record.get(self.field)
        if not isinstance(text, str):
            return Corrupt(
                f"a record must have a string under field={self.field!r}: got fields "
                f"{sorted(record)}, there {type(text).__name__}. Pass Text(field=...) the name of "
                "what holds the text."
            )
        try:
            return len(text) if text.isascii() else len(text.encode("utf-8"))
        except UnicodeEncodeError as error:
            return Corrupt(
                "text must be Unicode without lone surrogates: got "
                f"{text[error.start]!r} at character {error.start}. Mend or delete the record."
            )
