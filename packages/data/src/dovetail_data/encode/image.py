# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Images with labels."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dovetail_data._arguments import require_name
from dovetail_data.encode._values import with_values
from dovetail_data.encode.encoder import Document, require_records
from dovetail_data.pixels import decode, encode_png
from dovetail_data.record import Field, check_fields, described_fields
from dovetail_data.sources.source import Corrupt, Record


class Image:
    """Encodes labelled images: `image`, the bytes of a file, and `label`. Needs the extra `images`.

    An image is the bytes of a file, its path, {"bytes": .., "path": ..} as Hugging Face datasets
    store it, or an array u8[H, W] or u8[H, W, 3], stored as PNG. A path is relative to the file of
    the records, such as a JSONL file. Files are stored unchanged; one that is missing or cannot be
    decoded is corrupt.

    Args:
        field: Name of the field with the image.
        label: Name of the field with the label, an integer.
        fields: Other fields of the records to keep, as arrays of a fixed shape, such as
            {"embedding": values("float32", shape=(768,))}. Batches have them by their names.
    """

    tokenizer = None

    def __init__(
        self,
        *,
        field: str = "image",
        label: str = "label",
        fields: Mapping[str, Field] | None = None,
    ) -> None:
        require_name("field", field, "image")
        require_name("label", label, "label")
        self.field = field
        self.label = label
        own = {"image": Field(dtype="|u1"), "label": Field(dtype="<i4", ndim=0)}
        self._fields = check_fields(fields, own=own, per_token=False)
        self.layout = {**own, **self._fields}
        self.manifest = {"encoder": "image", "field": field, "label": label}
        self.manifest |= described_fields(self._fields)
        kind = f"image/{field}/{label}{described_fields(self._fields) or ''}"
        self.fingerprint = hashlib.sha256(kind.encode()).hexdigest()

    def __call__(self, records: Sequence[Record]) -> list[Document | Corrupt | None]:
        require_records(records)
        return with_values(records, [self._document(record) for record in records], self._fields)

    def located(self, record: Record, directory: str) -> Record:
        """Returns the record with the path of its image, if it has one, below `directory`."""
        image = record.get(self.field)
        if isinstance(image, str):
            return {**record, self.field: os.path.join(directory, image)}
        if not isinstance(image, Mapping) or not isinstance(image.get("path"), str):
            return record
        path = image["path"]
        return {**record, self.field: {**image, "path": os.path.join(directory, path)}}

    def _document(self, record: Record) -> Document | Corrupt:
        label = record.get(self.label)
        if isinstance(label, bool) or not isinstance(label, int | np.integer):
            return Corrupt(
                f"a record must have an integer under label={self.label!r}: got fields "
                f"{sorted(record)}, there {label!r}. Pass Image(label=...) its name."
            )
        try:
            content = self._content(record.get(self.field))
            decode(content, mode="RGB")
        except (OSError, ValueError) as error:
            return Corrupt(str(error))
        image = np.frombuffer(content, np.uint8)
        return Document(arrays={"image": image, "label": np.array(label, np.int64)})

    def _content(self, image: Any) -> bytes:
        if isinstance(image, Mapping) and "path" in image:
            image = image["path"] if image.get("bytes") is None else image["bytes"]
        if isinstance(image, str):
            return _read(image)
        if isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim in (2, 3):
            return encode_png(image)
        if not isinstance(image, bytes):
            raise ValueError(
                f"an image must be bytes, a path, {{'bytes', 'path'}} or u8[H, W(, 3)]: "
                f"got {type(image).__name__} under field={self.field!r}. Pass Image(field=...) its "
                "name."
            )
        return image


def _read(path: str) -> bytes:
    """Returns the bytes of a file; ValueError with its path if it cannot be read."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ValueError(
            f"the file of an image must be readable: got {os.path.abspath(path)!r}: "
            f"{error.strerror or error}. Correct its path, which is relative to the file of the "
            "records, or leave the record out."
        ) from error
