# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""JSON lines, one document each."""

import dataclasses
import functools
import json
from collections.abc import Iterator

from dovetail_data.sources import _files
from dovetail_data.sources.source import Corrupt, Part, Record

_PART_BYTES = 1 << 22  # large beside a line, small beside a worker's memory


def jsonl(paths: _files.Paths, *, pattern: str = "**/*.jsonl") -> "JsonLines":
    """One document per line of the files of `paths`: the string under `field` of a JSON object.

    paths: a file, a directory (searched with `pattern`) or a sequence of those; files in the order
    of their names. Blank lines are skipped. A line that is no such object is a ValueError that
    names file:line.
    """
    return JsonLines(files=_files.find(paths, pattern))


@dataclasses.dataclass(frozen=True, kw_only=True)
class JsonLines:
    files: tuple[_files.File, ...]

    @property
    def fingerprint(self) -> str:
        return self._fingerprint  # pyright takes no cached_property for a protocol's property

    @functools.cached_property
    def _fingerprint(self) -> str:
        return _files.digest(self.files, kind="jsonl")

    def parts(self) -> tuple[Part, ...]:
        """Ranges of bytes: a line belongs to the part in which it starts."""
        return tuple(
            Part(
                name=f"{file.name}[{start}:{min(start + _PART_BYTES, file.bytes)}]",
                path=file.path,
                start=start,
                stop=min(start + _PART_BYTES, file.bytes),
                bytes=min(_PART_BYTES, file.bytes - start),
            )
            for file in self.files
            for start in range(0, file.bytes, _PART_BYTES)
        )

    def read(self, part: Part) -> Iterator[Record | Corrupt]:
        with open(part.path, "rb") as stream:
            if part.start:
                stream.seek(part.start - 1)
                stream.readline()
            while (offset := stream.tell()) < part.stop:
                line = stream.readline()
                if not line:
                    raise ValueError(
                        f"a source must not change while it is read: got {part.path} with "
                        f"{offset} bytes, it had {part.stop} or more. Call jsonl(...) again."
                    )
                if line.strip():
                    yield self._parse(line)

    def _parse(self, line: bytes) -> Record | Corrupt:
        try:
            value = json.loads(line)
        except ValueError as error:
            return Corrupt(f"each line must be JSON in UTF-8: got {error}. Mend or delete it.")
        return value

    def locate(self, part: Part, i: int) -> str:
        return f"{part.name}#{i}"
