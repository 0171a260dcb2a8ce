# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""JSON lines, one record each."""

import bisect
import contextlib
import dataclasses
import functools
import itertools
import os
from collections.abc import Iterator

from dovetail_data import _elsewhere
from dovetail_data.sources import _files, compression
from dovetail_data.sources._json import parse
from dovetail_data.sources.source import Corrupt, Part, Record

_COUNT_BYTES = 1 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@_elsewhere.source
def jsonl(paths: _files.Paths, *, pattern: str = "**/*.jsonl") -> "JsonLines":
    """Reads the JSON object on each line as a record, in the order of the files' names.

    Blank lines and a byte order mark at the start are passed over. NaN and infinities are accepted.
    A line is corrupt if it is not a JSON object in UTF-8, has a name twice in one object, or a lone
    surrogate. A damaged or cut compressed file is corrupt behind its last readable line.

    Args:
        paths: A file, a directory or a sequence of those.
        pattern: Glob for directories. It also finds its matches with .gz, .bz2, .xz or .zst
            appended, and decompresses them as streams (.zst needs the extra `zstd`).

    Raises:
        ValueError: There is no file, or a file comes twice.

    Example:

        >>> from pathlib import Path
        >>> _ = Path("b.jsonl").write_text('{"text": "Hello"}')
        >>> jsonl("b.jsonl")
        JsonLines(files=1, bytes=17)
    """
    return JsonLines(files=_files.find(paths, pattern, compressed=True))


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class JsonLines(_files.Listed):
    """JSON lines as a source, from `jsonl`.

    A part is a range of bytes, or a whole compressed file.
    """

    files: tuple[_files.File, ...]

    @property
    def kind(self) -> str:
        return "jsonl"

    def parts(self) -> tuple[Part, ...]:
        """Returns ranges of bytes. A line belongs to the part with its first byte."""
        return tuple(input_part for file in self.files for input_part in _cut(file))

    def read_unchecked(self, part: Part) -> Iterator[Record | Corrupt]:
        if part.start == 0 and (wrong := compression.disguise(part.path)):
            yield Corrupt(wrong)
            return
        try:
            for line in _lines(part):
                if line.strip():
                    yield parse(line)
        except compression.Damaged as error:
            yield Corrupt(str(error))

    def count(self) -> int | None:
        """Returns the number of lines that are not blank; None if a file is damaged."""
        try:
            lines = itertools.chain.from_iterable(map(_lines, self.parts()))
            return sum(bool(line.strip()) for line in lines)
        except compression.Damaged:
            return None

    def locate(self, part: Part, i: int) -> str:
        before, blanks = _places(part, os.stat(part.path).st_mtime_ns)
        name = next(file.name for file in self.files if file.path == part.path)
        return f"{name}:{before + i + bisect.bisect_right(blanks, i) + 1}"


def _cut(file: _files.File) -> list[Part]:
    if compression.suffix(file.path) or compression.disguise(file.path):
        return [file.whole()]
    starts = range(0, file.bytes, _files.PART_BYTES)
    ranges = [(start, min(start + _files.PART_BYTES, file.bytes)) for start in starts]
    return [file.part(start, stop, size=stop - start) for start, stop in ranges]


def _lines(part: Part) -> Iterator[bytes]:
    """Yields the lines that start in `part`; raises Damaged if a compressed file ends early."""
    whole = bool(compression.suffix(part.path))
    with compression.open_file(part.path) as stream:
        if part.start:
            stream.seek(part.start - 1)
            stream.readline()
        first = part.start == 0
        while (whole or stream.tell() < part.stop) and (line := stream.readline()):
            yield line.removeprefix(_BYTE_ORDER_MARK) if first else line
            first = False


@functools.lru_cache(maxsize=64)
def _places(part: Part, _mtime_ns: int) -> tuple[int, list[int]]:
    """Returns the lines before the part, and for each of its blank lines the other lines before it.

    Counted only for a message, so that ranges stay cheap to read. Cached, because a damaged part is
    asked about many times.
    """
    blanks: list[int] = []
    items = 0
    with contextlib.suppress(compression.Damaged):  # `read` reports it, as its last item
        for line in _lines(part):
            if line.strip():
                items += 1
            else:
                blanks.append(items)
    return _newlines_before(part), blanks


def _newlines_before(part: Part) -> int:
    """Counts the newlines before the first line that starts in `part`."""
    if not part.start:
        return 0
    count = 0
    with open(part.path, "rb") as stream:
        left = part.start - 1
        while left and (content := stream.read(min(left, _COUNT_BYTES))):
            count += content.count(b"\n")
            left -= len(content)
        return count + stream.readline().count(b"\n")
