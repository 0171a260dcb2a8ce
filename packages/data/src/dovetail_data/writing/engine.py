# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The interface of engines, which encode tasks and write shards, and the engine of one machine.

The writer decides where a shard ends and keeps the ledger. An engine does the work: `Local` in this
process and its children, `dovetail_data.writing.hosts.Hosts` on the workers of Ray.
"""

from collections.abc import Generator, Iterator, Sequence, Set
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from dovetail_data._arguments import require_integer, require_name
from dovetail_data.corpus.shard import Encoded, Shard
from dovetail_data.writing.workers import Job, Task, encode_all


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
