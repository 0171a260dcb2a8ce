# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What turns records into arrays."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from dovetail_data.record import Field
from dovetail_data.sources.source import Corrupt, Record
from dovetail_data.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Document:
    """What is stored of one record.

    arrays: one per field of the encoder's layout. text_bytes: UTF-8 bytes of the text in it, for
    bits per byte; 0 where that means nothing.
    """

    arrays: Mapping[str, np.ndarray]
    text_bytes: int = 0


@runtime_checkable
class Encoder(Protocol):
    """Records to documents. Must pickle, and must not depend on how records are grouped."""

    @property
    def layout(self) -> Mapping[str, Field]:
        """The arrays of each document, by name."""
        ...

    @property
    def tokenizer(self) -> Tokenizer | None:
        """Kept with the corpus, so that its ids can be read; None where there are none."""
        ...

    @property
    def manifest(self) -> Mapping[str, Any]:
        """What made the documents, for index.json: names, settings and digests, JSON values."""
        ...

    @property
    def fingerprint(self) -> str:
        """Changes when the arrays of any record would."""
        ...

    def __call__(self, records: Sequence[Record]) -> list[Document | Corrupt | None]:
        """One result for each record: None where nothing is to be learned from it (dropped, and
        counted in the index), Corrupt where it is not what this encoder takes."""
        ...
