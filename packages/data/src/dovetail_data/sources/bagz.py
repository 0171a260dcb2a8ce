# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Records of Bagz files, read by the package `bagz`."""

import dataclasses
import os
import re
from collections.abc import Iterator
from typing import Any

from dovetail_data._arguments import is_remote, require_package
from dovetail_data.sources import _files
from dovetail_data.sources._decoding import Decode, RecordFiles, decoded, require_decode
from dovetail_data.sources.source import Corrupt, Part, Record

_SHARDED = re.compile(r"(?P<stem>.*)@(?P<count>\d+)(?P<ending>\.bagz?)")


def bagz(
    paths: _files.Paths, *, decode: Decode = "json", pattern: str = "**/*.bagz"
) -> "BagzFiles":
    """Reads the records of Bagz files, in the order of the files' names.

    The format has no checksums: damage is found if the file's index, its compression or `decode`
    contradict it. Needs the extra `bagz`.

    Args:
        paths: A file, a sharded name such as "web@100.bagz", which stands for web-00000-of-00100
            .bagz and its successors, a directory, or a sequence of those.
        decode: As for `array_record`: "json", "text" or "bytes".
        pattern: Glob for directories.

    Raises:
        ValueError: There is no file, one is no Bagz file, or `decode` is unknown.
        ImportError: The package `bagz` is missing.
    """
    require_decode(decode)
    reader = _require_bagz().Reader
    files = _files.find(_expanded(paths), pattern)
    counts = tuple(len(_open(reader, file.path)) for file in files)
    return BagzFiles(files=files, counts=counts, decode=decode)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class BagzFiles(RecordFiles):
    """Bagz files as a source, from `bagz`. A part is a range of records.

    Attributes:
        files: The files.
        counts: Number of records of each file.
        decode: "json", "text" or "bytes".
    """

    format = "bagz"

    def read_unchecked(self, part: Part) -> Iterator[Record | Corrupt]:
        reader = _open(_require_bagz().Reader, part.path)
        for i in range(part.start, part.stop):
            try:
                content = reader[i]
            except (ValueError, RuntimeError, IndexError) as error:
                yield Corrupt(
                    f"a record must be whole: got {error}. Fetch or write the file again, or leave "
                    "the record out."
                )
            else:
                yield decoded(content, self.decode)


def _expanded(paths: Any) -> Any:
    """Returns the paths with each sharded name replaced by its files."""
    if isinstance(paths, list | tuple):
        return [shard for path in paths for shard in _shards(path)]
    return _shards(paths) if isinstance(paths, str | os.PathLike) else paths


def _shards(path: Any) -> list[Any]:
    match = _SHARDED.fullmatch(os.fspath(path)) if isinstance(path, str | os.PathLike) else None
    if match is None:
        return [path]
    count = int(match["count"])
    names = [f"{match['stem']}-{i:05d}-of-{count:05d}{match['ending']}" for i in range(count)]
    return names if isinstance(path, str) and is_remote(path) else [*map(os.fspath, names)]


def _open(reader: Any, path: str) -> Any:
    """Opens a file; ValueError if its index cannot be read."""
    if "," in path or "@" in path:
        raise ValueError(
            f"the name of a Bagz file must have no comma and no @, which divide file names: got "
            f"{path!r}. Rename it."
        )
    try:
        return reader(path)
    except ValueError as error:
        raise ValueError(
            f"a Bagz file must end with its index: got {path}: {error}. Fetch or write the file "
            "again, or leave it out of `paths`."
        ) from error


def _require_bagz() -> Any:
    return require_package("bagz", "a .bagz file needs", extra="bagz")
