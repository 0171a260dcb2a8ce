# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Text files, one document each."""

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from dovetail_data.sources import _files
from dovetail_data.sources.source import Corrupt, Part, Record

Errors = Literal["strict", "replace"]


def text(
    paths: _files.Paths, *, pattern: str = "**/*.txt", errors: Errors = "strict"
) -> "TextFiles":
    """One document per UTF-8 file of `paths`, in the order of their names.

    paths: a file, a directory (searched with `pattern`) or a sequence of those. errors: "strict"
    raises on a file that is not UTF-8; "replace" puts U+FFFD for what cannot be read. Line ends
    and a byte order mark stay as they are. No file at all is a ValueError.
    """
    return TextFiles(files=_files.find(paths, pattern), errors=errors)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextFiles:
    files: tuple[_files.File, ...]
    errors: Errors

    @property
    def fingerprint(self) -> str:
        return self._fingerprint  # pyright takes no cached_property for a protocol's property

    @functools.cached_property
    def _fingerprint(self) -> str:
        return _files.digest(self.files, kind=f"text errors={self.errors}")

    def parts(self) -> tuple[Part, ...]:
        return tuple(
            Part(name=file.name, path=file.path, start=0, stop=file.bytes, bytes=file.bytes)
            for file in self.files
        )

    def read(self, part: Part) -> Iterator[Record | Corrupt]:
        content = Path(part.path).read_bytes()
        if len(content) != part.bytes:
            raise ValueError(
                f"a source must not change while it is read: got {part.path} with {len(content)} "
                f"bytes, it had {part.bytes}. Call text(...) again."
            )
        try:
            yield {"text": content.decode("utf-8", errors=self.errors)}
        except UnicodeDecodeError as error:
            yield Corrupt(
                f"a text file must be UTF-8: got byte 0x{content[error.start]:02x}"
                f" at offset {error.start}. Convert the file, leave it out of `paths`, or pass "
                'errors="replace".'
            )

    def locate(self, part: Part, i: int) -> str:
        return part.name
