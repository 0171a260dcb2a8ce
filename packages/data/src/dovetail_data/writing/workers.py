# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Encoding of the input, in this process or in spawned ones, always in order.

The writer decides where a shard ends and keeps the ledger. An engine does the work: `Local` in this
process and its children, `dovetail_data.writing.hosts.Hosts` on the workers of Ray.

The input is divided into tasks: small parts together, a large one slice by slice.

A chunk is the input of one call of a worker: consecutive parts of about a megabyte in all, read by
the worker itself. A part too large for a worker's memory, such as a compressed file of many
gigabytes, is a chunk of its own. The first process reads it and sends the records in slices.
"""

import collections
import dataclasses
import itertools
import os
from collections.abc import Generator, Iterator, Sequence, Set
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from dovetail_data._arguments import require_integer, require_name
from dovetail_data.corpus.processes import Processes
from dovetail_data.corpus.shard import Encoded, Shard
from dovetail_data.encode.encoder import Document, Encoder, Located
from dovetail_data.record import Codec
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """Everything for the encoding of any task.

    Args:
        source: The source.
        encoder: The encoder.
        codec: Converts documents to records.
    """

    source: Source
    encoder: Encoder
    codec: Codec

    def encode(self, task: Task) -> Encoded:
        out = Encoded()
        records: list[Record] = []
        places: list[tuple[Piece, int, Corrupt | None]] = []
        for piece in task.pieces:
            for j, record in enumerate(self._records(piece), start=piece.first):
                corrupt = record if isinstance(record, Corrupt) else None
                places.append((piece, j, corrupt))
                if not isinstance(record, Corrupt):
                    records.append(record)
        documents = self._documents(records)
        documents.reverse()
        for piece, j, corrupt in places:
            result = corrupt or documents.pop()  # each is freed when its record is made
            if result is None:
                out.dropped += 1
            elif isinstance(result, Corrupt):
                out.corrupt.append((self.source.locate(piece.input_part, j), result.error))
                out.damaged.add(piece.number)
            else:
                counts = [len(result.arrays[name]) for name in self.codec.ids]
                out.records.append(self._record(result, where=(piece.input_part, j)))
                out.table.append((max(counts, default=0), piece.number, j))
                out.tokens += sum(counts)
                out.text_bytes += result.text_bytes
        return out

    def _records(self, piece: Piece) -> Iterator[Record | Corrupt]:
        """Yields the records of a piece, and takes them out of it: one may be large."""
        directory = os.path.dirname(piece.input_part.path)
        for record in self._given(piece):
            if isinstance(self.encoder, Located) and not isinstance(record, Corrupt):
                yield self.encoder.located(record, directory)
            else:
                yield record

    def _given(self, piece: Piece) -> Iterator[Record | Corrupt]:
        if piece.records is None:
            yield from self.source.read(piece.input_part)
            return
        given, piece.records[:] = piece.records[::-1], ()
        while given:
            yield given.pop()

    def _documents(self, records: list[Record]) -> list[Document | Corrupt | None]:
        """Returns the documents of `records`, and empties that list."""
        count, documents = len(records), list(self.encoder(records))
        records.clear()
        if len(documents) != count:
            raise ValueError(
                f"an encoder must give one result for each record: got {len(documents)} for "
                f"{count}. Return None for a record that is to be left out."
            )
        return documents

    def _record(self, document: Document, *, where: tuple[Part, int]) -> bytes:
        try:
            return self.codec.encode(document.arrays)
        except ValueError as error:
            raise ValueError(f"{self.source.locate(*where)}: {error}") from error


def encode_all(
    job: Job, tasks: Iterator[Task], *, workers: int
) -> Generator[tuple[Encoded, bool], None, None]:
    """Yields the result of each task, in their order, and whether its chunk ends with it.

    Args:
        job: Source and encoder.
        tasks: The tasks.
        workers: Number of processes; 1 encodes in this one.
    """
    if workers == 1:
        yield from ((job.encode(task), task.ends) for task in tasks)
        return
    processes = Processes(job.encode, workers)
    pending: collections.deque[tuple[Future[Encoded], bool]] = collections.deque()
    try:
        for task in tasks:
            pending.append((processes.submit(task), task.ends))
            if len(pending) > 2 * workers:  # one running and one waiting for each
                yield pending[0][0].result(), pending.popleft()[1]
        while pending:
            yield pending[0][0].result(), pending.popleft()[1]
    except BrokenProcessPool as error:
        raise RuntimeError(
            f"each worker must live until the corpus is written: got workers={workers} with one "
            'dead. Guard the script by `if __name__ == "__main__":`, or pass fewer workers if '
            "memory ran out; finished shards are kept."
        ) from error
    finally:
        processes.close(wait=True)


def check_hosts(hosts: object, ray: object, workers: int) -> None:
    """Raises for wrong options of Ray, and for two kinds of workers.

    Args:
        hosts: Workers of Ray.
        ray: Address of Ray.
        workers: Processes of this machine.
    """
    if hosts is not None:
        require_integer("hosts", hosts, "Pass 1 or more, or None.", least=1)
    if ray is not None:
        require_name("ray", ray, "10.0.0.1:6379")
    if ray is not None and hosts is None:
        raise ValueError(
            f"ray must come with the number of workers there: got ray={ray!r} and hosts=None. "
            "Pass hosts= too."
        )
    if hosts is not None and workers > 1:
        raise ValueError(
            f"workers must be 1 beside workers of Ray: got workers={workers} and hosts={hosts}. "
            "Leave one of them out."
        )


@runtime_checkable
class Result(Protocol):
    """The counts of an encoded task."""

    @property
    def documents(self) -> int: ...
    @property
    def tokens(self) -> int: ...
    @property
    def dropped(self) -> int: ...
    @property
    def corrupt(self) -> Sequence[tuple[str, str]]: ...
    @property
    def damaged(self) -> Set[int]: ...


@runtime_checkable
class Engine(Protocol):
    """Encodes tasks and writes shards."""

    @property
    def bytes(self) -> int:
        """Bytes of the documents in the open shard."""
        ...

    def results(self, tasks: Iterator[Task]) -> Generator[tuple[Any, bool], None, None]:
        """Yields the result of each task, in their order, and whether its chunk ends with it."""
        ...

    def add(self, result: Any) -> None:
        """Adds the documents of the last result to the open shard."""
        ...

    def end_shard(self, entry: dict[str, Any]) -> None:
        """Ends the open shard. `entry` is the rest of its line in the ledger."""
        ...

    def lines(self, *, wait: bool) -> Iterator[dict[str, Any]]:
        """Yields the ledger's lines of ended shards, in order, once each is on the disk.

        With `wait`, yields those of all ended shards.
        """
        ...

    def close(self) -> None:
        """Ends all work, and deletes the files of an unfinished shard."""
        ...


class Local:
    """Writes shards in this process.

    Args:
        job: Source and encoder.
        directory: Directory of the corpus.
        number: Number of the first shard to write.
        workers: Number of processes that encode; 1 encodes in this one.
    """

    def __init__(self, job: Job, directory: Path, *, number: int, workers: int) -> None:
        self._job, self._directory = job, directory
        self._number, self._workers = number, workers
        self._shard: Shard | None = None
        self._lines: list[dict[str, Any]] = []

    @property
    def bytes(self) -> int:
        return 0 if self._shard is None else self._shard.bytes

    def results(self, tasks: Iterator[Task]) -> Generator[tuple[Encoded, bool], None, None]:
        return encode_all(self._job, tasks, workers=self._workers)

    def add(self, result: Encoded) -> None:
        self._shard = self._shard or Shard(self._directory, self._number)
        self._shard.add(result)

    def end_shard(self, entry: dict[str, Any]) -> None:
        assert self._shard is not None
        self._lines.append({**entry, "shard": self._shard.close()})
        self._shard = None
        self._number += 1

    def lines(self, *, wait: bool) -> Iterator[dict[str, Any]]:
        while self._lines:
            yield self._lines.pop(0)

    def close(self) -> None:
        if self._shard is not None:
            self._shard.discard()
