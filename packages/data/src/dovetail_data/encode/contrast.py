# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Texts for embedding models: a query, its positive, and a hard negative."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dovetail_data import _elsewhere
from dovetail_data._arguments import require_name
from dovetail_data.encode import _chats
from dovetail_data.encode.encoder import Document
from dovetail_data.record import Field, ids
from dovetail_data.sources.source import Corrupt, Record
from dovetail_data.tokenizing.tokenizer import Encoding, Tokenizer, require_tokenizer


@_elsewhere.text
class Contrast:
    """Encodes the texts of a record for contrastive learning, each into a field of ids.

    Each text is whole: bos (if the tokenizer has one), its ids, and eos. A negative that is absent
    or empty has no id.

    Args:
        tokenizer: The tokenizer, such as `Bytes()` or `Pretrained("model")`.
        query: Name of the field with the query.
        positive: Name of the field with the text that belongs to it.
        negative: Name of the field with a hard negative: a text that seems to belong to the query
            and does not. None: records have no such text.

    Raises:
        TypeError: `tokenizer` is not a tokenizer, such as a name.
        ValueError: Two texts have one name.

    Example:

        >>> from dovetail_data import Bytes
        >>> document = Contrast(Bytes())([{"query": "2+2?", "positive": "4"}])[0]
        >>> document.arrays["positive"]
        array([256,  52, 257], dtype=int32)
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        query: str = "query",
        positive: str = "positive",
        negative: str | None = None,
    ) -> None:
        require_tokenizer(tokenizer)
        names = {"query": query, "positive": positive}
        if negative is not None:
            names["negative"] = negative
        for argument, name in names.items():
            require_name(argument, name, argument)
        self._names = tuple(names.values())
        if len(set(self._names)) < len(self._names):
            raise ValueError(
                f"the texts of a record must have fields of their own: got query={query!r}, "
                f"positive={positive!r}, negative={negative!r}. Pass different names."
            )
        self.tokenizer = tokenizer
        self.layout: Mapping[str, Field] = {n: ids(tokenizer.vocab_size) for n in self._names}
        self.manifest: Mapping[str, Any] = {
            "encoder": "passages",
            "tokenizer": tokenizer.fingerprint,
            "vocab_size": tokenizer.vocab_size,
            "fields": list(self._names),
        }
        self.fingerprint: str = _chats.digest(self.manifest)

    def __call__(self, records: Sequence[Record]) -> list[Document | Corrupt | None]:
        return _chats.encode_each(records, self._prepare, self.tokenizer.encode)

    def _prepare(self, record: Record) -> _chats.Prepared:
        texts: list[str] = []
        for i, name in enumerate(self._names):
            text = record.get(name)
            if i == 2 and not text:
                continue
            if not isinstance(text, str) or not text:
                raise _chats.MalformedError(
                    f"a record must have a text under {', '.join(self._names[:2])}, got "
                    f"{name}={text!r:.60} with the fields {sorted(record)}: write it, or name "
                    "other fields by query= and positive="
                )
            texts.append(text)
        return _chats.Prepared(texts=texts, finish=self._document)

    def _document(self, encodings: Sequence[Encoding]) -> Document:
        bos = [] if self.tokenizer.bos_id is None else [self.tokenizer.bos_id]
        arrays = {name: np.zeros(0, np.int32) for name in self._names}
        for name, encoding in zip(self._names, encodings, strict=False):
            whole = [bos, encoding.ids, [self.tokenizer.eos_id]]
            arrays[name] = np.concatenate(whole).astype(np.int32)
        return Document(arrays=arrays)


def contrasted(manifest: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the names of the texts of a corpus that `Contrast` encoded, else nothing."""
    return tuple(manifest["fields"]) if manifest.get("encoder") == "passages" else ()
