# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""JSON lines, one document each."""

import dataclasses
import functools
import json
import re
from collections.abc import Iterator

from dovetail_data.sources import _files
from dovetail_data.sources.source import Part

_PART_BYTES = 1 << 22  # large beside a line, small beside a worker's memory
_SURROGATE = re.compile("[\ud800-\udfff]")  # JSON escapes can spell them, UTF-8 cannot


def jsonl(paths: _files.Paths, *, field: str = "text", pattern: str = "**/*.jsonl") -> "JsonLines":
    """One document per line of the files of `paths`: the string under `field` of a JSON object.

    paths: a file, a directory (searched with `pattern`) or a sequence of those; files in the order
    of their names. Blank lines are skipped. A line that is no such object is a ValueError that
    names file:line.
    """
    return JsonLines(files=_files.find(paths, pattern), field=field)


@dataclasses.dataclass(frozen=True, kw_only=True)
class JsonLines:
    files: tuple[_files.File, ...]
    field: str

    @property
    def fingerprint(self) -> str:
        return self._fingerprint  # pyright takes no cached_property for a protocol's property

    @functools.cached_property
    def _fingerprint(self) -> str:
        return _files.digest(self.files, kind=f"jsonl field={self.field}")

    def parts(self) -> tuple[Part, ...]:
        """Ranges of bytes: a line belongs to the part in which it starts."""
        return tuple(
            Part(
                name=f"{file.name}[{start}:{min(start + _PART_BYTES, file.bytes)}]",
                path=file.path,
                start=start,
                stop=min(start + _PART_BYTES, file.bytes),
            )
            for file in self.files
            for start in range(0, file.bytes, _PART_BYTES)
        )

    def read(self, part: Part) -> Iterator[dict[str, str]]:
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
                    yield {"text": self._parse(line, part.path, offset)}

    def _parse(self, line: bytes, path: str, offset: int) -> str:
        try:
            value = json.loads(line)
        except ValueError as error:  # JSONDecodeError and UnicodeDecodeError
            raise ValueError(
                f"each line must be JSON in UTF-8: got {_where(path, offset)}: {error}. "
                "Mend the line or delete it."
            ) from error
        if not isinstance(value, dict) or not isinstance(value.get(self.field), str):
            got = sorted(value) if isinstance(value, dict) else type(value).__name__
            raise ValueError(
                f"each line must be an object with a string under field={self.field!r}: got "
                f"{_where(path, offset)} with {got}. Pass field= the name that holds the text."
            )
        text = value[self.field]
        if not text.isascii() and _SURROGATE.search(text):
            raise ValueError(
                f"each text must be Unicode without lone surrogates: got {_where(path, offset)}. "
                "Mend the \\ud800-\\udfff escapes of the line or delete it."
            )
        return text


def _where(path: str, offset: int) -> str:
    """file:line of a byte offset; counted only for a message, so that ranges stay cheap."""
    with open(path, "rb") as stream:
        return f"{path}:{stream.read(offset).count(10) + 1}"
