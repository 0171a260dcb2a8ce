# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Files of numbered records: their parts, and bytes to records as JSON, text or themselves."""

import dataclasses
from collections.abc import Iterator
from typing import ClassVar, Literal, get_args

from dovetail_data.sources import _files
from dovetail_data.sources._json import parse
from dovetail_data.sources.source import Corrupt, Part, Record

Decode = Literal["json", "text", "bytes"]


def require_decode(decode: str) -> None:
    """Raises ValueError for an unknown way of decoding."""
    if decode not in get_args(Decode):
        raise ValueError(
            f"decode must be one of {list(get_args(Decode))}: got decode={decode!r}. "
            'Pass decode="bytes" to take records as they are.'
        )


def decoded(content: bytes, decode: Decode) -> Record | Corrupt:
    """Returns the record with this content."""
    if decode == "bytes":
        return {"bytes": content}
    if decode == "json":
        return parse(content)
    try:
        return {"text": content.decode("utf-8")}
    except UnicodeDecodeError as error:
        return Corrupt(
            f"a record must be UTF-8: got byte 0x{content[error.start]:02x} at its byte "
            f'{error.start}. Pass decode="bytes", or write the record again.'
        )


def parts_of(file: _files.File, count: int) -> Iterator[Part]:
    """Yields ranges of the `count` records of a file, each of about 4 MB."""
    run = max(1, count * _files.PART_BYTES // max(1, file.bytes))
    for start in range(0, count, run):
        stop = min(start + run, count)
        size = stop * file.bytes // count - start * file.bytes // count
        yield file.part(start, stop, size=size)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class RecordFiles(_files.Listed):
    """Files of numbered records as a source. A part is a range of records.

    Attributes:
        files: The files.
        counts: Number of records of each file.
        decode: "json", "text" or "bytes".
    """

    format: ClassVar[str]
    files: tuple[_files.File, ...]
    counts: tuple[int, ...]
    decode: Decode

    @property
    def kind(self) -> str:
        return f"{self.format} decode={self.decode}"

    def parts(self) -> tuple[Part, ...]:
        return tuple(
            input_part
            for file, count in zip(self.files, self.counts, strict=True)
            for input_part in parts_of(file, count)
        )

    def locate(self, part: Part, i: int) -> str:
        return f"{self.by_path[part.path].name} record {part.start + i}"
