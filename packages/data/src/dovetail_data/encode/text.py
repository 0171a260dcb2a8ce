# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Plain text for pretraining."""

import hashlib
import itertools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from dovetail_data import _elsewhere
from dovetail_data._arguments import require_name
from dovetail_data.encode._values import with_values
from dovetail_data.encode.encoder import Document, require_records
from dovetail_data.record import Field, check_fields, described_fields, ids, stored
from dovetail_data.sources.source import Corrupt, Record
from dovetail_data.tokenizing.tokenizer import (
    LONG_CHARACTERS,
    SLICE_CHARACTERS,
    Bytes,
    Pretrained,
    Tokenizer,
    require_tokenizer,
)


@_elsewhere.text
class Text:
    """Encodes strings: bos (if the tokenizer has one), their ids, and eos.

    A record with an empty text is dropped: nothing in it can be predicted. A text of more than four
    million characters is encoded in pieces, with the same ids.

    Args:
        tokenizer: The tokenizer, such as `Bytes()` or `Pretrained("model")`.
        field: Name of the field with the text.
        fields: Other fields of the records to keep, such as {"logps": values("float32",
            per_token=True)}. Batches have them by their names; a value per token is in the slot
            of its id as the target, as `mask` is. Values per record need rows from `pad`.

    Raises:
        TypeError: `tokenizer` is not a tokenizer, such as a name.

    Example:

        >>> from dovetail_data import Bytes
        >>> Text(Bytes())([{"text": "Hi"}])[0].arrays["tokens"]
        array([256,  72, 105, 257], dtype=int32)
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        field: str = "text",
        fields: Mapping[str, Field] | None = None,
    ) -> None:
        require_tokenizer(tokenizer)
        require_name("field", field, "text")
        self.tokenizer = tokenizer
        self.field = field
        own = {"tokens": ids(tokenizer.vocab_size)}
        self._fields = check_fields(fields, own=own, per_token=True)
        self.layout = {**own, **self._fields}
        self.manifest = {"encoder": "text", "field": field, "tokenizer": tokenizer.fingerprint}
        self.manifest |= described_fields(self._fields)
        kind = f"text/{field}/{tokenizer.fingerprint}{described_fields(self._fields) or ''}"
        self.fingerprint = hashlib.sha256(kind.encode()).hexdigest()

    def __call__(self, records: Sequence[Record]) -> list[Document | Corrupt | None]:
        require_records(records)
        out: list[Document | Corrupt | None] = []
        kept: list[tuple[int, int]] = []
        for i, record in enumerate(records):
            size = self._text_bytes(record)
            out.append(size if isinstance(size, Corrupt) else None)
            if isinstance(size, int) and size > 0:
                kept.append((i, size))
        long = {i for i, _ in kept if len(records[i][self.field]) > LONG_CHARACTERS}
        short = [records[i][self.field] for i, _ in kept if i not in long]
        encodings = iter(self.tokenizer.encode(short))
        bos = [] if self.tokenizer.bos_id is None else [self.tokenizer.bos_id]
        before, after = np.array(bos, np.int32), np.array([self.tokenizer.eos_id], np.int32)
        for i, size in kept:
            if i in long:
                tokens = self._stored([before], self._pieces(records[i][self.field]), [after])
            else:
                tokens = np.concatenate([before, next(encodings).ids, after])
            out[i] = Document(arrays={"tokens": tokens}, text_bytes=size)
        return with_values(records, out, self._fields)

    def _pieces(self, text: str) -> Iterable[np.ndarray]:
        """Returns the ids of a long text, in pieces where the tokenizer can."""
        if isinstance(self.tokenizer, Bytes | Pretrained):
            return self.tokenizer.encode_slices(text)
        return (encoding.ids for encoding in self.tokenizer.encode([text]))

    def _stored(self, *pieces: Iterable[np.ndarray]) -> np.ndarray:
        """Joins ids as they are stored: beside a long text, each copy in int32 would count."""
        field = self.layout["tokens"]
        tokens = bytearray()
        for piece in itertools.chain(*pieces):
            tokens += stored("tokens", field, piece).data
        return np.frombuffer(tokens, field.dtype)

    def _text_bytes(self, record: Record) -> int | Corrupt:
        """Returns the UTF-8 bytes of a record's text, or the reason why it has none."""
        text = record.get(self.field)
        if not isinstance(text, str):
            return Corrupt(
                f"a record must have a string under field={self.field!r}: got fields "
                f"{sorted(record)}, there {type(text).__name__}. Pass Text(field=...) the name of "
                "the field with the text."
            )
        if text.isascii():
            return len(text)
        size = 0
        for start in range(0, len(text), SLICE_CHARACTERS):
            try:
                size += len(text[start : start + SLICE_CHARACTERS].encode("utf-8"))
            except UnicodeEncodeError as error:
                at = start + error.start
                return Corrupt(
                    "text must be Unicode without lone surrogates: got "
                    f"{text[at]!r} at character {at}. Mend or delete the record."
                )
        return size
