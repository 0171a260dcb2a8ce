# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The file of one rank and one step: blocks of arrays, then a header with their digests.

Last come the header's SHA-256 and its length. A save only copies the blocks to the host; digests
and files follow behind the next training steps.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from dovetail_cluster.tier.blocks import Block

_END = struct.Struct("!32sQ")  # digest and length of the header
_BLANK = "0" * 64


class Name(NamedTuple):
    """The name of a file. Files of one step and generation belong together, one of each writer.

    Args:
        step: Number of the step.
        generation: The generation of the writer.
        writer: The rank of the writer.
        hosts: Number of ranks in that generation.
    """

    step: int
    generation: int
    writer: int
    hosts: int

    def __str__(self) -> str:
        return ".".join(map(str, self))


def parse(text: str) -> Name | None:
    """Reads the name of a file. Returns None for any other name."""
    fields = text.split(".")
    if len(fields) != 4 or not all(field.isdecimal() for field in fields):
        return None
    return Name(*map(int, fields))


class Stored(NamedTuple):
    """A block in a file.

    Args:
        name: Name of the leaf.
        begin: First index on each axis.
        shape: Shape of the block.
        offset: First byte in the file.
        size_bytes: Number of bytes.
        sha256: Digest of the bytes, in hexadecimal.
    """

    name: str
    begin: tuple[int, ...]
    shape: tuple[int, ...]
    offset: int
    size_bytes: int
    sha256: str


class Header(NamedTuple):
    """The header of a file.

    Attributes:
        file: Its name.
        arrays: Dtype and shape of every leaf of the step, by name.
        trees: Names of the trees.
        states: States of the objects of the writer, by name.
        metrics: Scalars of the step.
        blocks: The blocks in this file.
    """

    file: Name
    arrays: dict[str, tuple[str, tuple[int, ...]]]
    trees: list[str]
    states: dict[str, Any]
    metrics: dict[str, float]
    blocks: list[Stored]

    @property
    def end(self) -> int:
        """The first byte after the blocks."""
        return sum(block.size_bytes for block in self.blocks)

    @property
    def size_bytes(self) -> int:
        """Size of the whole file."""
        return self.end + len(_encode(self)) + _END.size


def with_blocks(header: Header, blocks: Sequence[Block]) -> Header:
    """Adds the blocks of a file before their digests are known. The size of the file is final."""
    stored, offset = [], 0
    for block in blocks:
        stored.append(
            Stored(block.name, block.begin, block.shape, offset, block.size_bytes, _BLANK)
        )
        offset += block.size_bytes
    return header._replace(blocks=stored)


def write(path: Path, header: Header, data: memoryview) -> Header:
    """Writes a file. The digests are those of `data`, so a fault of the medium is found later.

    Args:
        path: The file.
        header: The header, from `with_blocks`.
        data: All blocks, one after another.

    Returns:
        The header with the digests.

    Raises:
        OSError: The file cannot be written.
    """
    blocks = [block._replace(sha256=_digest(data, block)) for block in header.blocks]
    header = header._replace(blocks=blocks)
    text = _encode(header)
    with open(path, "wb") as file:
        file.write(data)
        file.write(text)
        file.write(_END.pack(hashlib.sha256(text).digest(), len(text)))
    return header


def read_header(path: Path, name: Name) -> Header:
    """Reads a header.

    Args:
        path: The file.
        name: Its name as a whole file.

    Raises:
        ValueError: The header is damaged, or belongs to another file.
        OSError: The file cannot be read.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - _END.size))
        end = file.read()
        digest, length = _END.unpack(end) if len(end) == _END.size else (b"", 0)
        file.seek(max(0, size - _END.size - length))
        text = file.read(min(length, size))
    if hashlib.sha256(text).digest() != digest:
        raise ValueError(f"{path}: the header must have its digest, got other bytes")
    header = _decode(text)
    if header.file != name or header.size_bytes != size:
        raise ValueError(f"{path}: the file must be whole and under its name, got {header.file}")
    return header


def verify(path: Path, name: Name) -> Header:
    """Reads the header of a file and proves all of its blocks.

    Args:
        path: The file.
        name: Its name as a whole file.

    Raises:
        ValueError: The file is damaged.
        OSError: The file cannot be read.
    """
    header = read_header(path, name)
    with open(path, "rb") as file, mmap_of(file) as data:
        for block in header.blocks:
            if _digest(data, block) != block.sha256:
                raise ValueError(f"{path}: {block.name} must have its digest, got other bytes")
    return header


def mmap_of(file: BinaryIO) -> Any:
    """Maps a file for reading; an empty one as no bytes."""
    if not os.fstat(file.fileno()).st_size:
        return memoryview(b"")
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _digest(data: Any, block: Stored) -> str:
    with memoryview(data)[block.offset : block.offset + block.size_bytes] as view:
        return hashlib.sha256(view).hexdigest()


def proven(block: Stored, data: bytes | bytearray | memoryview, dtype: np.dtype) -> np.ndarray:
    """Makes an array of the bytes of a block.

    Args:
        block: The block.
        data: The bytes.
        dtype: Dtype of the array.

    Raises:
        ValueError: The bytes have another digest.
    """
    if hashlib.sha256(data).hexdigest() != block.sha256:
        raise ValueError(f"{block.name} must have its digest, got other bytes")
    return np.frombuffer(data, np.uint8).view(dtype).reshape(block.shape)


def _encode(header: Header) -> bytes:
    return json.dumps(header._asdict()).encode()


def _decode(text: bytes) -> Header:
    fields = json.loads(text)
    arrays = {name: (dtype, tuple(shape)) for name, (dtype, shape) in fields["arrays"].items()}
    blocks = [
        Stored(name, tuple(begin), tuple(shape), offset, size, digest)
        for name, begin, shape, offset, size, digest in fields["blocks"]
    ]
    return Header(
        Name(*fields["file"]), arrays, fields["trees"], fields["states"], fields["metrics"], blocks
    )
