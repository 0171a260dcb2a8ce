# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""One rule for tokenizer and model: an id that the model does not have is refused where it occurs.

A tokenizer may have more ids than the model has rows, as that of Gemma 3 1B, or fewer, where the
vocabulary is padded. Neither does harm until an id without a row is in a prompt or a row of data.
"""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Integer

from dovetail_data._arguments import require_integer
from dovetail_data.encode.encoder import Document, Encoder, wrong_encoder
from dovetail_data.record import Field, ids
from dovetail_data.sources.source import Corrupt, Record
from dovetail_data.tokenizing.tokenizer import Pretrained, Tokenizer

_REMEDY = (
    "use the tokenizer.json that belongs to the model, or add rows with "
    "dovetail_models.resize_vocab"
)


def foreign_id(
    tokens: Sequence[int] | Integer[np.ndarray, " n"], tokenizer: Tokenizer, *, vocab_size: int
) -> str:
    """Describes the first id that a model does not have; empty if it has all.

    Args:
        tokens: Ids of a text.
        tokenizer: Names the id.
        vocab_size: Rows of the model's embedding.

    Example:

        >>> from dovetail_data import Bytes
        >>> foreign_id([65, 66], Bytes(), vocab_size=66)
        "id 66 ('B')"
    """
    array = np.asarray(tokens)
    if not array.size or array.max() < vocab_size:
        return ""
    token = int(array[array >= vocab_size][0])
    text = tokenizer.decode([token])
    if not text and isinstance(tokenizer, Pretrained):
        text = tokenizer.name_of(token)
    return f"id {token} ({text!r})" if text else f"id {token}"


def check_ends(tokenizer: Tokenizer, *, vocab_size: int) -> None:
    """Raises ValueError unless a model of `vocab_size` rows has the tokenizer's bos and eos.

    Every document has these ids, so a run can be refused before its data is read.

    Example:

        >>> from dovetail_data import Bytes
        >>> check_ends(Bytes(), vocab_size=258)
    """
    for name, token in (("bos_id", tokenizer.bos_id), ("eos_id", tokenizer.eos_id)):
        if token is not None and (wrong := foreign_id([token], tokenizer, vocab_size=vocab_size)):
            raise ValueError(
                f"the model must have a row for the ids that begin and end a text, got {wrong} as "
                f"{name} for {vocab_size} rows: {_REMEDY}"
            )


def within(encoder: Encoder, *, vocab_size: int | None) -> Encoder:
    """Returns an encoder that reports records with an id that the model does not have.

    It returns the encoder itself if the tokenizer has no such id, or `vocab_size` is None. `write`
    raises an error that names each reported record, or leaves it out within `max_corrupt`.

    Args:
        encoder: The encoder, such as `Text(tokenizer)`.
        vocab_size: Rows of the model's embedding.

    Raises:
        TypeError: `encoder` is not an encoder, or `vocab_size` no integer.
        ValueError: `vocab_size` is below 1.

    Example:

        >>> from dovetail_data import Bytes, Text
        >>> Bytes().vocab_size
        258
        >>> within(Text(Bytes()), vocab_size=200).layout["tokens"].vocab_size
        200
    """
    if isinstance(encoder, type) or not isinstance(encoder, Encoder):
        raise wrong_encoder(encoder)
    if vocab_size is None:
        return encoder
    require_integer("vocab_size", vocab_size, "Pass the rows of the model's embedding.", least=1)
    tokenizer = encoder.tokenizer
    if tokenizer is None or tokenizer.vocab_size <= vocab_size:
        return encoder
    return _Within(encoder=encoder, tokenizer=tokenizer, vocab_size=vocab_size)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Within:
    """The encoder of `within`."""

    encoder: Encoder
    tokenizer: Tokenizer
    vocab_size: int

    @property
    def layout(self) -> Mapping[str, Field]:
        own = self.encoder.layout
        return {k: f if f.vocab_size is None else ids(self.vocab_size) for k, f in own.items()}

    @property
    def manifest(self) -> Mapping[str, Any]:
        return self.encoder.manifest

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(f"{self.encoder.fingerprint}/{self.vocab_size}".encode()).hexdigest()

    def __call__(self, records: Sequence[Record]) -> list[Document | Corrupt | None]:
        return [self._checked(document) for document in self.encoder(records)]

    def _checked(self, document: Document | Corrupt | None) -> Document | Corrupt | None:
        if not isinstance(document, Document):
            return document
        for name, field in self.encoder.layout.items():
            tokens = document.arrays[name]
            if field.vocab_size is not None and (
                wrong := foreign_id(tokens, self.tokenizer, vocab_size=self.vocab_size)
            ):
                return Corrupt(
                    f"every id must have one of the model's {self.vocab_size} rows, got {wrong} in "
                    f"{name}: leave it out of the text, or {_REMEDY}"
                )
        return document
