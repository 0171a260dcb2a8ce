# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Values that a document has beside its ids or its image, from fields of the record."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dovetail_data.encode.encoder import Document
from dovetail_data.record import Field, as_dtype, stored
from dovetail_data.sources.source import Corrupt, Record


def with_values(
    records: Sequence[Record],
    documents: Sequence[Document | Corrupt | None],
    fields: Mapping[str, Field],
) -> list[Document | Corrupt | None]:
    """Returns the documents with the values of their records, `Corrupt` where one is wrong.

    Args:
        records: The records.
        documents: The documents, one for each record.
        fields: Fields of values by name.
    """
    if not fields:
        return list(documents)
    return [
        _with_values(record, document, fields) if isinstance(document, Document) else document
        for record, document in zip(records, documents, strict=True)
    ]


def _with_values(
    record: Record, document: Document, fields: Mapping[str, Field]
) -> Document | Corrupt:
    arrays = dict(document.arrays)
    for name, field in fields.items():
        if name not in record:
            return Corrupt(
                f"a record must have the fields {sorted(fields)}: got {sorted(record)}. "
                f"Add {name!r}, or leave it out of fields=."
            )
        try:
            array = stored(name, field, _array(name, field, record[name]))
        except ValueError as error:
            return Corrupt(str(error))
        if field.per_token and len(array) != len(arrays["tokens"]):
            return Corrupt(
                f"{name} must have one value for each id, bos and eos included: got "
                f"{len(array)} values, {len(arrays['tokens'])} ids. Make it with the tokenizer "
                "of the corpus."
            )
        arrays[name] = array
    return Document(arrays=arrays, text_bytes=document.text_bytes)


def _array(name: str, field: Field, value: Any) -> np.ndarray:
    """Returns a value as an array. Numbers of Python are rounded to a field of floats.

    Args:
        name: Name of the field.
        field: The field.
        value: An array, a number, or lists of numbers.
    """
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    dtype = as_dtype(field.dtype)
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError):  # lists of several lengths
        array = np.empty((), object)
    if not array.size and isinstance(value, list):
        array = array.astype(dtype)
    if array.dtype.kind not in "biuf":
        raise ValueError(
            f"{name} must have numbers of shape={list(field.shape or ())}: got {value!r:.80}. Mend "
            "the record."
        )
    if dtype.kind not in "fV" or array.dtype.kind == "b":
        return array
    with np.errstate(over="ignore"):
        rounded = array.astype(dtype)
    if np.isinf(rounded.astype(np.float64)).sum() > np.isinf(array.astype(np.float64)).sum():
        raise ValueError(
            f"{name} must fit {dtype}: got {value!r:.80}. Pass a wider dtype to values(...)."
        )
    return rounded
