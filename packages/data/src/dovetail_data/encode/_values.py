# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Values that a document has beside its ids or its image, from fields of the record."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dovetail_data._arguments import require_name, wrong
from dovetail_data.encode.encoder import Document
from dovetail_data.record import Field, as_dtype, stored
from dovetail_data.sources.source import Corrupt, Record

_REMEDY = 'Pass {"reward": values("float32")}.'
_TAKEN = {  # names of arrays in batches
    *("tokens", "targets", "mask", "segment_ids", "positions", "images", "labels", "source"),
    *("image_ids", "pair_ids", "prompt_ids"),
}


class Values:
    """The argument `fields` of an encoder.

    Args:
        fields: Fields of `values` by the names that they have in records, documents and batches.
        layout: The encoder's own fields.
        per_token: Whether the encoder has one text, whose ids may have values.

    Attributes:
        layout: The fields.
        manifest: Their description; empty without fields.
        kind: The same as text, for the fingerprint; "" without fields.
    """

    def __init__(
        self, fields: Mapping[str, Field] | None, *, layout: Mapping[str, Field], per_token: bool
    ) -> None:
        if not isinstance(fields, Mapping | None):
            raise wrong("fields", "a mapping of names to fields", fields, _REMEDY)
        self.layout = dict(fields or {})
        for name, field in self.layout.items():
            require_name("fields", name, "reward")
            if not isinstance(field, Field) or field.shape is None:
                raise wrong(f"fields[{name!r}]", "a field of values", field, _REMEDY)
            if name in _TAKEN | set(layout):
                raise ValueError(
                    f"a field must not have the name of another array: got fields={{{name!r}: ..}}."
                    " Give it another name, in the records too."
                )
            if field.per_token and not per_token:
                raise ValueError(
                    "values per token need documents of one text: got per_token=True in "
                    f"fields[{name!r}]. Write it with Text, or give one value for each record."
                )
        described = {name: field.described() for name, field in self.layout.items()}
        self.manifest: dict[str, Any] = {"fields": described} if described else {}
        self.kind = f"/{json.dumps(described)}" if described else ""

    def added(
        self, records: Sequence[Record], documents: Sequence[Document | Corrupt | None]
    ) -> list[Document | Corrupt | None]:
        """Returns the documents with the values of their records, `Corrupt` where one is wrong."""
        if not self.layout:
            return list(documents)
        return [
            self._with_values(record, document) if isinstance(document, Document) else document
            for record, document in zip(records, documents, strict=True)
        ]

    def _with_values(self, record: Record, document: Document) -> Document | Corrupt:
        arrays = dict(document.arrays)
        for name, field in self.layout.items():
            if name not in record:
                return Corrupt(
                    f"a record must have the fields {sorted(self.layout)}: got {sorted(record)}. "
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
