# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The interface of encoders: records to arrays."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from dovetail_data._arguments import wrong
from dovetail_data.record import Field
from dovetail_data.sources.source import Corrupt, Record
from dovetail_data.tokenizing.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Document:
    """The stored form of one record.

    Args:
        arrays: One array for each field of the encoder's layout.
        text_bytes: UTF-8 bytes of its text, for bits per byte; 0 for documents without text.
    """

    arrays: Mapping[str, np.ndarray]
    text_bytes: int = 0


def require_records(records: object) -> None:
    """Raises TypeError unless `records` is a sequence of dictionaries."""
    remedy = 'Pass [{"text": "..."}], or write(source, ..., encoder=...).'
    if not isinstance(records, Sequence) or isinstance(records, str | bytes):
        raise wrong("records", "a sequence of dictionaries", records, remedy)
    for record in records:
        if not isinstance(record, Mapping):
            raise wrong("record", "a dictionary", record, remedy)


@runtime_checkable
class Encoder(Protocol):
    """Turns records into documents. Must pickle, and must not depend on the grouping of records."""

    @property
    def layout(self) -> Mapping[str, Field]:
        """The arrays of each document, by name."""
        ...

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer, kept with the corpus to decode its ids. None for documents without ids."""
        ...

    @property
    def manifest(self) -> Mapping[str, Any]:
        """The origin of the documents, for index.json: JSON values, with digests."""
        ...

    @property
    def fingerprint(self) -> str:
        """Digest. It changes when the arrays of any record change."""
        ...

    def __call__(self, records: Sequence[Record]) -> list[Document | Corrupt | None]:
        """Returns one result for each record.

        None drops the record, because nothing in it can be trained on; the index counts it.
        `Corrupt` reports a record that this encoder cannot read.
        """
        ...


def wrong_encoder(encoder: object) -> TypeError:
    """Returns the error for what is no encoder. The usual mistake is to pass a class."""
    remedy = "Pass Text(tokenizer), or Chat, Preference, Prompt or Image."
    return wrong("encoder", "an Encoder", encoder, remedy)


@runtime_checkable
class Located(Protocol):
    """An encoder of records that name files. Paths are relative to the file of the record."""

    def located(self, record: Record, directory: str) -> Record:
        """Returns the record with absolute paths.

        Args:
            record: The record.
            directory: Directory of the file that it comes from.
        """
        ...
