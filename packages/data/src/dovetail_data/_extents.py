# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Where the bytes of each record lie in an ArrayRecord file, and reading them from there.

ArrayRecord's reader decodes a chunk and its index for each record at random, about 14 us of CPU;
one `pread` takes 1. With `group_size:1,uncompressed` each record is a chunk of its own whose last
bytes are the record, so its place can be noted when the shard is written. The file stays one that
any reader of ArrayRecord opens.

The layout is that of Riegeli: a file of blocks of 64 KiB, each beginning with a header of 24 bytes
that may fall inside of anything; and chunks, each with a header of 40 bytes: u64 hash of the
header, size of the data, hash of the data, (count of records << 8 | type), size of the values.
"""

import os
import struct
from collections.abc import Iterator
from pathlib import Path

_BLOCK_BYTES, _BLOCK_HEADER_BYTES = 1 << 16, 24
_CONTENT_BYTES = _BLOCK_BYTES - _BLOCK_HEADER_BYTES
_CHUNK_HEADER = struct.Struct("<8xQ8xQQ")
_RECORDS = ord("r")
_OPEN_FILES = 128  # a corpus may have more shards than a process may have open files


def read_extent(file: int, begin: int, size: int) -> bytes:
    """`size` bytes of the chunk data that begins at `begin`; fewer where the file ends."""
    room = _BLOCK_BYTES - begin % _BLOCK_BYTES
    if size <= room:
        return os.pread(file, size, begin)
    headers = -(-(size - room) // _CONTENT_BYTES)
    raw = memoryview(os.pread(file, size + headers * _BLOCK_HEADER_BYTES, begin))
    starts = range(room + _BLOCK_HEADER_BYTES, len(raw), _BLOCK_BYTES)
    return b"".join([raw[:room], *(raw[i : i + _CONTENT_BYTES] for i in starts)])


def extents(path: Path) -> Iterator[tuple[int, int]]:
    """(begin, size) of every record of a file, in order."""
    file = os.open(path, os.O_RDONLY)
    try:
        end = os.fstat(file).st_size
        position = 0
        while position < end:
            header = read_extent(file, _inside(position), _CHUNK_HEADER.size)
            data_bytes, kind, value_bytes = _CHUNK_HEADER.unpack(header)
            data = _advance(position, _CHUNK_HEADER.size)
            # More values than data: compressed, which no shard of ours is.
            if kind & 0xFF == _RECORDS and kind >> 8 == 1 and value_bytes <= data_bytes:
                yield _inside(_advance(data, data_bytes - value_bytes)), value_bytes
            position = _advance(data, data_bytes)
    finally:
        os.close(file)


def _inside(position: int) -> int:
    """Past the header of the block that begins at `position`, if one does."""
    return position if position % _BLOCK_BYTES else position + _BLOCK_HEADER_BYTES


def _advance(position: int, count: int) -> int:
    """`count` bytes of content further."""
    if count == 0:
        return position
    begin = _inside(position)
    blocks, within = divmod(begin % _BLOCK_BYTES - _BLOCK_HEADER_BYTES + count, _CONTENT_BYTES)
    block = begin - begin % _BLOCK_BYTES
    return block + blocks * _BLOCK_BYTES + (within + _BLOCK_HEADER_BYTES if within else 0)


class Files:
    """The shards of a corpus, opened when they are read, not too many of them at once."""

    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths
        self._open: dict[int, int] = {}

    def __getitem__(self, shard: int) -> int:
        """The descriptor of a shard; valid until other shards are asked for."""
        if shard not in self._open:
            if len(self._open) >= _OPEN_FILES:
                os.close(self._open.pop(next(iter(self._open))))
            self._open[shard] = os.open(self._paths[shard], os.O_RDONLY)
        return self._open[shard]

    def __del__(self) -> None:
        for file in self._open.values():
            os.close(file)
