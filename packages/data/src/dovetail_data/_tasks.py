# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""How the input is cut for encoding: small parts together, a large one slice by slice.

A chunk is what one call of a worker encodes: consecutive parts of about a megabyte in all, which
the worker reads itself. A part that no worker's memory should have to hold, such as a compressed
file of many gigabytes, is a chunk of its own; it is read here, and its records go to the workers
a slice at a time.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from dovetail_data.sources.source import Corrupt, Part, Record, Source

_CHUNK_BYTES = 1 << 20  # of input: enough to share among workers, small beside their memory
_LARGE_BYTES = 1 << 25  # of a part, perhaps compressed
_SLICE_RECORDS = 1024

Chunk = Sequence[tuple[int, Part]]
"""Parts that are encoded together, each with its place among all parts."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Piece:
    """Records of one part: `records`, of which the first is number `first`, or None: all of it."""

    number: int
    part: Part
    first: int = 0
    records: list[Record | Corrupt] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """What is encoded in one call. ends: the chunk ends with it."""

    pieces: list[Piece]
    ends: bool


def cutting() -> str:
    """Changes when the same parts would be cut otherwise: a ledger counts what is cut here, and
    another version of this code must not go on with it."""
    return f"{_CHUNK_BYTES}/{_LARGE_BYTES}/{_SLICE_RECORDS}"


def cut(parts: Sequence[Part]) -> list[Chunk]:
    """Consecutive parts, each chunk ending with the part that makes it _CHUNK_BYTES long."""
    chunks: list[list[tuple[int, Part]]] = []
    room = 0
    for i, part in enumerate(parts):
        if room <= 0 or part.bytes >= _LARGE_BYTES:
            chunks.append([])
            room = _CHUNK_BYTES
        chunks[-1].append((i, part))
        room -= part.bytes
    return list(chunks)


def tasks(source: Source, chunks: Sequence[Chunk], *, done: int, slices: int) -> Iterator[Task]:
    """What is left when `done` chunks and the first `slices` tasks of the next are encoded."""
    for chunk in chunks[done:]:
        ((number, part), *others) = chunk
        if others or part.bytes < _LARGE_BYTES:
            yield Task(pieces=[Piece(number=i, part=one) for i, one in chunk], ends=True)
            continue
        yield from itertools.islice(_sliced(source, number, part), slices, None)
        slices = 0


def _sliced(source: Source, number: int, part: Part) -> Iterator[Task]:
    records = source.read(part)
    coming = list(itertools.islice(records, _SLICE_RECORDS))
    for i in itertools.count():
        following = list(itertools.islice(records, _SLICE_RECORDS))
        piece = Piece(number=number, part=part, first=i * _SLICE_RECORDS, records=coming)
        yield Task(pieces=[piece], ends=not following)
        if not following:
            return
        coming = following
