# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Division of the input for encoding: small parts together, a large one slice by slice.

A chunk is the input of one call of a worker: consecutive parts of about a megabyte in all, read by
the worker itself. A part too large for a worker's memory, such as a compressed file of many
gigabytes, is a chunk of its own; it is read here, and its records go to the workers a slice at a
time.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from dovetail_data.sources.source import Corrupt, Part, Record, Source

_CHUNK_BYTES = 1 << 20  # of input: enough to share among workers, small beside their memory
_LARGE_BYTES = 1 << 25  # of a part, perhaps compressed
_SLICE_RECORDS = 1024

Chunk = Sequence[tuple[int, Part]]
"""Parts encoded together, each with its place among all parts."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Piece:
    """Records of one part.

    Args:
        number: Place of the part among all parts.
        input_part: The part.
        first: Number of the first of `records` in the part.
        records: The records; None for the whole part.
    """

    number: int
    input_part: Part
    first: int = 0
    records: list[Record | Corrupt] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """The input of one call. With `ends`, it is the last of its chunk."""

    pieces: list[Piece]
    ends: bool


def cutting() -> str:
    """Returns the settings of the division.

    A ledger counts chunks and slices, so another version of this code must not continue it with
    other settings.
    """
    return f"{_CHUNK_BYTES}/{_LARGE_BYTES}/{_SLICE_RECORDS}"


def cut(parts: Sequence[Part]) -> list[Chunk]:
    """Returns chunks of consecutive parts. A chunk ends when it is _CHUNK_BYTES long."""
    chunks: list[list[tuple[int, Part]]] = []
    room = 0
    for i, input_part in enumerate(parts):
        if room <= 0 or input_part.bytes >= _LARGE_BYTES:
            chunks.append([])
            room = _CHUNK_BYTES
        chunks[-1].append((i, input_part))
        room -= input_part.bytes
    return list(chunks)


def tasks(source: Source, chunks: Sequence[Chunk], *, done: int, slices: int) -> Iterator[Task]:
    """Yields the tasks left after `done` chunks and the first `slices` tasks of the next.

    Args:
        source: The source.
        chunks: All chunks.
        done: Finished chunks.
        slices: Finished tasks of the chunk behind them.
    """
    for chunk in chunks[done:]:
        ((number, first), *others) = chunk
        if others or first.bytes < _LARGE_BYTES:
            yield Task(pieces=[Piece(number=i, input_part=p) for i, p in chunk], ends=True)
            continue
        yield from itertools.islice(_sliced(source, number, first), slices, None)
        slices = 0


def _sliced(source: Source, number: int, part: Part) -> Iterator[Task]:
    records = source.read(part)
    coming = list(itertools.islice(records, _SLICE_RECORDS))
    for i in itertools.count():
        following = list(itertools.islice(records, _SLICE_RECORDS))
        piece = Piece(number=number, input_part=part, first=i * _SLICE_RECORDS, records=coming)
        yield Task(pieces=[piece], ends=not following)
        if not following:
            return
        coming = following
