# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Shards: ArrayRecord files, each with the table of its documents, written once and read by place.

ArrayRecord's reader decodes a chunk and its index for each random record, about 14 us of CPU; one
`pread` takes 1 us. With `group_size:1,uncompressed` each record is a chunk of its own and its last
bytes are the record, so its location can be noted when the shard is written. The file stays
readable by any reader of ArrayRecord.

The layout is that of Riegeli: a file of blocks of 64 KiB, each beginning with a header of 24 bytes,
which may fall inside of anything; and chunks, each with a header of 40 bytes: u64 hash of the
header, size of the data, hash of the data, (count of records << 8 | type), size of the values.
"""

import contextlib
import dataclasses
import hashlib
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter

from dovetail_data._durable import sync

_BLOCK_BYTES, _BLOCK_HEADER_BYTES = 1 << 16, 24
_CONTENT_BYTES = _BLOCK_BYTES - _BLOCK_HEADER_BYTES
_CHUNK_HEADER = struct.Struct("<8xQ8xQQ")
_RECORDS = ord("r")
_PIECE_BYTES = 1 << 20  # of a record in memory, to verify it
_OPEN_ATTEMPTS = 8
_OPEN_FILES = 128  # a corpus may have more shards than a process may have open files
# group_size:1 makes each document readable alone; ids of 2 bytes gain little from compression and
# reading them costs the trainer's CPU on every step.
_OPTIONS = "group_size:1,uncompressed"

TABLE = np.dtype(
    [
        ("begin", "<i8"),
        ("bytes", "<u4"),
        ("crc32", "<u4"),
        ("length", "<u4"),
        ("part", "<u4"),
        ("record", "<u4"),
    ]
)
"""A document in the table. begin, bytes, crc32: of its record in the file. length: number of ids.
part, record: the part of the input with the document, and its place among the records there."""


@dataclasses.dataclass
class Encoded:
    """The documents of a task as records.

    Attributes:
        records: The records.
        table: (length, part, record) of each.
        tokens: Number of ids.
        text_bytes: UTF-8 bytes of their texts.
        dropped: Number of dropped records.
        corrupt: (where, error) of each record that could not be read or encoded.
        damaged: Numbers of the parts with such records.
    """

    records: list[bytes] = dataclasses.field(default_factory=list)
    table: list[tuple[int, int, int]] = dataclasses.field(default_factory=list)
    tokens: int = 0
    text_bytes: int = 0
    dropped: int = 0
    corrupt: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    damaged: set[int] = dataclasses.field(default_factory=set)

    @property
    def documents(self) -> int:
        return len(self.records)


class Shard:
    """Collects chunks under temporary names. `close` makes them durable and renames them.

    A shard is NUMBER.array_record, one record per document, and NUMBER.npy, their TABLE.

    Args:
        directory: Directory of the corpus.
        number: Number of the shard.
        partial: The temporary names begin with it.
    """

    def __init__(self, directory: Path, number: int, *, partial: str = "partial-") -> None:
        self._directory = directory
        self._prefix = partial
        self._names = {"records": f"{number:05d}.array_record", "table": f"{number:05d}.npy"}
        self._writer = ArrayRecordWriter(str(self._partial("records")), _OPTIONS)
        self._tables: list[np.ndarray] = []
        self._totals = {"documents": 0, "tokens": 0, "bytes": 0, "text_bytes": 0, "dropped": 0}
        self._corrupt: list[dict[str, str]] = []

    @property
    def bytes(self) -> int:
        return self._totals["bytes"]

    def add(self, chunk: Encoded) -> None:
        table = np.zeros(len(chunk.records), TABLE)
        table["bytes"] = [len(record) for record in chunk.records]
        table["crc32"] = [zlib.crc32(record) for record in chunk.records]
        columns = np.array(chunk.table, np.uint32).reshape(-1, 3)
        for i, name in enumerate(("length", "part", "record")):
            table[name] = columns[:, i]
        for record in chunk.records:
            self._writer.write(record)
        self._tables.append(table)
        self._totals["documents"] += len(chunk.records)
        self._totals["tokens"] += chunk.tokens
        self._totals["bytes"] += sum(map(len, chunk.records))
        self._totals["text_bytes"] += chunk.text_bytes
        self._totals["dropped"] += chunk.dropped
        self._corrupt += [{"where": where, "error": error} for where, error in chunk.corrupt]

    def close(self) -> dict[str, Any]:
        """Makes the files durable under their final names.

        Returns the shard's entry of the index.
        """
        self._writer.close()
        table = np.concatenate(self._tables)
        _locate(table, self._partial("records"))
        np.save(self._partial("table"), table)
        line: dict[str, Any] = {**self._totals, "corrupt": self._corrupt}
        for kind, name in self._names.items():
            with open(self._partial(kind), "rb") as stream:
                os.fsync(stream.fileno())
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
                line[kind] = {"file": name, "bytes": stream.tell(), "sha256": digest}
        for kind, name in self._names.items():
            self._partial(kind).replace(self._directory / name)
        sync(self._directory)
        return line

    def discard(self) -> None:
        """Deletes the files of an unfinished shard."""
        del self._writer  # closing it would write, and fail again on a full disk
        for kind in self._names:
            self._partial(kind).unlink(missing_ok=True)

    def _partial(self, kind: str) -> Path:
        return self._directory / f"{self._prefix}{self._names[kind]}"


def _locate(table: np.ndarray, path: Path) -> None:
    """Fills in `begin`, and verifies that each record lies there."""
    # Behind the documents lies ArrayRecord's own index, which is a record too.
    places = np.array(list(extents(path))[: len(table)], np.int64).reshape(-1, 2)
    file = os.open(path, os.O_RDONLY)
    try:
        wrong = len(places) != len(table) or (places[:, 1] != table["bytes"]).any()
        if not wrong:
            table["begin"] = places[:, 0]
            crcs = [crc32_of(file, begin, size) for begin, size in places.tolist()]
            wrong = (np.array(crcs, np.uint32) != table["crc32"]).any()
    finally:
        os.close(file)
    if wrong:
        raise ValueError(
            f"array-record must write each document as one chunk: got {path} with {len(places)} of "
            f"{len(table)} records where its format has them. Use array-record 0.8."
        )


def read_extent(file: int, begin: int, size: int) -> bytes:
    """Reads `size` bytes of chunk data from `begin` on; fewer at the end of the file.

    Args:
        file: Descriptor of the file.
        begin: Position in the file.
        size: Number of bytes, block headers not counted.
    """
    room = _BLOCK_BYTES - begin % _BLOCK_BYTES
    if size <= room:
        return os.pread(file, size, begin)
    headers = -(-(size - room) // _CONTENT_BYTES)
    raw = memoryview(os.pread(file, size + headers * _BLOCK_HEADER_BYTES, begin))
    starts = range(room + _BLOCK_HEADER_BYTES, len(raw), _BLOCK_BYTES)
    return b"".join([raw[:room], *(raw[i : i + _CONTENT_BYTES] for i in starts)])


def crc32_of(file: int, begin: int, size: int) -> int:
    """Returns the CRC-32 of `size` bytes of chunk data from `begin` on, read in pieces.

    Args:
        file: Descriptor of the file.
        begin: Position in the file.
        size: Number of bytes, block headers not counted.
    """
    crc32 = 0
    while size > 0:
        piece = read_extent(file, begin, min(size, _PIECE_BYTES))
        crc32 = zlib.crc32(piece, crc32)
        if not piece:  # the file ends early
            break
        size -= len(piece)
        begin = _inside(_advance(begin, len(piece)))
    return crc32


def extents(path: Path) -> Iterator[tuple[int, int]]:
    """Yields (begin, size) of every record of a file, in order."""
    file = os.open(path, os.O_RDONLY)
    try:
        end = os.fstat(file).st_size
        position = 0
        while position < end:
            header = read_extent(file, _inside(position), _CHUNK_HEADER.size)
            data_bytes, kind, value_bytes = _CHUNK_HEADER.unpack(header)
            data = _advance(position, _CHUNK_HEADER.size)
            # More values than data: compressed, and no shard of ours is.
            if kind & 0xFF == _RECORDS and kind >> 8 == 1 and value_bytes <= data_bytes:
                yield _inside(_advance(data, data_bytes - value_bytes)), value_bytes
            position = _advance(data, data_bytes)
    finally:
        os.close(file)


def _inside(position: int) -> int:
    """Returns the position behind the block header at `position`, if there is one."""
    return position if position % _BLOCK_BYTES else position + _BLOCK_HEADER_BYTES


def _advance(position: int, count: int) -> int:
    """Returns the position after `count` more bytes of content."""
    if count == 0:
        return position
    begin = _inside(position)
    blocks, within = divmod(begin % _BLOCK_BYTES - _BLOCK_HEADER_BYTES + count, _CONTENT_BYTES)
    block = begin - begin % _BLOCK_BYTES
    return block + blocks * _BLOCK_BYTES + (within + _BLOCK_HEADER_BYTES if within else 0)


class Files:
    """The shards of a corpus, opened on first use, a limited number at a time.

    Args:
        paths: The shards.
        fetch: Called with the number of a shard before it is opened.
    """

    def __init__(self, paths: list[Path], fetch: Callable[[int], None]) -> None:
        self._paths = paths
        self._fetch = fetch
        self._open: dict[int, int] = {}

    def __getitem__(self, shard: int) -> int:
        """Returns the descriptor of a shard. It is valid until the next call."""
        if shard not in self._open:
            if len(self._open) >= _OPEN_FILES:
                os.close(self._open.pop(next(iter(self._open))))
            self._open[shard] = self._opened(shard)
            # A deleted file takes its room until it is closed.
            for other in [i for i in self._open if i != shard and not self._paths[i].exists()]:
                os.close(self._open.pop(other))
        return self._open[shard]

    def _opened(self, shard: int) -> int:
        for _ in range(_OPEN_ATTEMPTS - 1):
            self._fetch(shard)
            with contextlib.suppress(FileNotFoundError):  # another process may have made room
                return os.open(self._paths[shard], os.O_RDONLY)
        self._fetch(shard)
        return os.open(self._paths[shard], os.O_RDONLY)

    def __del__(self) -> None:
        for file in self._open.values():
            os.close(file)
