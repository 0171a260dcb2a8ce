# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Text files, one record each."""

import dataclasses
from collections.abc import Iterator
from typing import Literal, get_args

from dovetail_data import _elsewhere
from dovetail_data.sources import _files, compression
from dovetail_data.sources.source import Corrupt, Part, Record

Errors = Literal["strict", "replace"]


@_elsewhere.source
def text(
    paths: _files.Paths, *, pattern: str = "**/*.txt", errors: Errors = "strict"
) -> "TextFiles":
    """Reads each UTF-8 file as one record: {"text": content}, in the order of their names.

    Line ends and a byte order mark stay. A compressed file that is damaged or cut is corrupt as a
    whole.

    Args:
        paths: A file, a directory or a sequence of those.
        pattern: Glob for directories: "**/*.py" also finds files in subfolders, "*.py" does not. It
            also finds its matches with .gz, .bz2, .xz or .zst appended, and decompresses them (.zst
            needs the extra `zstd`).
        errors: "strict" reports a file that is not UTF-8 as corrupt. "replace" puts U+FFFD for
            bytes that are not UTF-8.

    Raises:
        ValueError: There is no file, a file comes twice, or `errors` is unknown.

    Example:

        >>> from pathlib import Path
        >>> _ = Path("a.txt").write_text("To be, or not to be: that is the question.")
        >>> text("a.txt")
        TextFiles(files=1, bytes=42)
    """
    if errors not in get_args(Errors):
        raise ValueError(
            f"errors must be one of {list(get_args(Errors))}: got errors={errors!r}. "
            'Pass errors="replace" to read what is not UTF-8.'
        )
    return TextFiles(files=_files.find(paths, pattern, compressed=True), errors=errors)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class TextFiles(_files.Listed):
    """Text files as a source, from `text`. A part is a file."""

    files: tuple[_files.File, ...]
    errors: Errors

    @property
    def kind(self) -> str:
        return f"text errors={self.errors}"

    def parts(self) -> tuple[Part, ...]:
        return tuple(file.whole() for file in self.files)

    def read_unchecked(self, part: Part) -> Iterator[Record | Corrupt]:
        if wrong := compression.disguise(part.path):
            yield Corrupt(wrong)
            return
        try:
            with compression.open_file(part.path) as stream:
                content = stream.read()
            text = content.decode("utf-8", errors=self.errors)
            del content  # not both in memory while the text is encoded
            yield {"text": text}
        except compression.Damaged as error:
            yield Corrupt(str(error))
        except UnicodeDecodeError as error:
            yield Corrupt(
                f"a text file must be UTF-8: got byte 0x{error.object[error.start]:02x} at offset "
                f"{error.start}. Convert the file, leave it out of `paths`, or pass "
                'errors="replace".'
            )

    def locate(self, part: Part, i: int) -> str:
        return part.name
