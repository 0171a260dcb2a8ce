# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Locations of records in an ArrayRecord file, and reads from there.

ArrayRecord's reader decodes a chunk and its index for each random record, about 14 us of CPU; one
`pread` takes 1 us. With `group_size:1,uncompressed` each record is a chunk of its own and its last
bytes are the record, so its location can be noted when the shard is written. The file stays
readable by any reader of ArrayRecord.

The layout is that of Riegeli: a file of blocks of 64 KiB, each beginning with a header of 24 bytes,
which may fall inside of anything; and chunks, each with a header of 40 bytes: u64 hash of the
header, size of the data, hash of the data, (count of records << 8 | type), size of the values.
"""

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

_BLOCK_BYTES, _BLOCK_HEADER_BYTES = 1 << 16, 24
_CONTENT_BYTES = _BLOCK_BYTES - _BLOCK_HEADER_BYTES
_CHUNK_HEADER = struct.Struct("<8xQ8xQQ")
_RECORDS = ord("r")
_PIECE_BYTES = 1 << 20  # of a record in memory, to verify it
_OPEN_FILES = 128  # a corpus may have more shards than a process may have open files


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
    """The shards of a corpus, opened on first use, a limited number at a time."""

    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths
        self._open: dict[int, int] = {}

    def __getitem__(self, shard: int) -> int:
        """Returns the descriptor of a shard. It is valid until the next call."""
        if shard not in self._open:
            if len(self._open) >= _OPEN_FILES:
                os.close(self._open.pop(next(iter(self._open))))
            self._open[shard] = os.open(self._paths[shard], os.O_RDONLY)
        return self._open[shard]

    def __del__(self) -> None:
        for file in self._open.values():
            os.close(file)
