# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The engine of many hosts: Ray runs the tasks, this process decides where shards end.

    driver                               workers
    task 0, task 1, ..               ->  encode: documents to staged files
    sizes, in order: a shard is full <-
    shard 0 = files of tasks 0 to 9  ->  assemble: staged files to a shard
    a line of the ledger             <-

Only counts come back to the driver, so it limits no number of workers. Ray runs a task again whose
worker died; a second run writes the same bytes.
"""

import collections
import functools
import importlib
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from typing import Any

from dovetail_data.writing import staged as _staged
from dovetail_data.writing.staged import DiskError, Place, Staged
from dovetail_data.writing.workers import Job, Task

_RETRIES = 3  # of a task whose worker died; it is Ray's default, and part of the message
_AHEAD = 8  # tasks for each worker that may be done before the first unfinished one

_jobs: dict[bytes, Job] = {}  # in a worker: a tokenizer is read once, not for each task


class Hosts:
    """Encodes tasks and writes shards on the workers of Ray.

    Args:
        ray: The module, connected.
        job: Source and encoder.
        place: The directories of the corpus.
        hosts: Number of tasks that run at a time.
        queued: Tasks that may wait for a worker. More than 0 needs a Ray of `hosts` CPUs.
        number: Number of the first shard to write.
        start: Chunk and slice of the first task.
        disk: Makes a context that adds advice to the error of a full disk.
    """

    def __init__(
        self,
        ray: Any,
        *,
        job: Job,
        place: Place,
        hosts: int,
        queued: int,
        number: int,
        start: tuple[int, int],
        disk: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._ray, self._place, self._hosts, self._disk = ray, place, hosts, disk
        self._limit = hosts + queued
        self._number, self._start = number, start
        options = {"num_cpus": 1, "max_retries": _RETRIES, "scheduling_strategy": "SPREAD"}
        self._encode = ray.remote(**options)(_encode)
        self._assemble = ray.remote(**options)(_staged.assemble)
        self._job = ray.put(job)
        self._running: set[Any] = set()
        self._names: list[str] = []  # staged files of the open shard
        self._shards: collections.deque[tuple[Any, dict[str, Any], list[str]]] = collections.deque()
        self.bytes = 0

    def results(self, tasks: Iterator[Task]) -> Generator[tuple[Staged, bool], None, None]:
        pending: collections.deque[tuple[Any, Task]] = collections.deque()
        chunk, piece = self._start
        for task in tasks:
            name = f"{chunk:08d}-{piece:06d}"
            chunk, piece = (chunk + 1, 0) if task.ends else (chunk, piece + 1)
            # In a list, Ray passes the reference on, and does not read the job for each task.
            run = functools.partial(self._encode.remote, [self._job], task, self._place, name)
            pending.append((self._submit(run), _without_records(task)))
            while pending and (len(pending) > _AHEAD * self._hosts or self._done(pending[0][0])):
                yield self._taken(pending)
        while pending:
            yield self._taken(pending)

    def add(self, result: Staged) -> None:
        self._names.append(result.name)
        self.bytes += result.bytes

    def end_shard(self, entry: dict[str, Any]) -> None:
        names, self._names, self.bytes = self._names, [], 0
        run = functools.partial(
            self._assemble.remote, names, place=self._place, number=self._number
        )
        self._shards.append((self._submit(run), entry, names))
        self._number += 1

    def lines(self, *, wait: bool) -> Iterator[dict[str, Any]]:
        while self._shards and (wait or self._done(self._shards[0][0])):
            shard, entry, names = self._shards[0]
            yield {**entry, "shard": self._get(shard, f"shard {self._number - len(self._shards)}")}
            self._shards.popleft()
            for name in names:  # the line is in the ledger now
                (self._place.staging / name).unlink(missing_ok=True)

    def close(self) -> None:
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._running.clear()

    def _submit(self, run: Callable[[], Any]) -> Any:
        """Starts a task of Ray once fewer than the limit run."""
        while len(self._running) >= self._limit:
            done, _ = self._ray.wait(list(self._running), num_returns=1)
            self._running.difference_update(done)
        reference = run()
        self._running.add(reference)
        return reference

    def _done(self, reference: Any) -> bool:
        return bool(self._ray.wait([reference], timeout=0)[0])

    def _taken(self, pending: collections.deque[tuple[Any, Task]]) -> tuple[Staged, bool]:
        reference, task = pending.popleft()
        return self._get(reference, task.pieces[0].input_part.name), task.ends

    def _get(self, reference: Any, what: str) -> Any:
        """Returns the result of a task of Ray, or raises its error as it was raised there."""
        errors = self._ray.exceptions
        try:
            result = self._ray.get(reference)
        except errors.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, DiskError):
                with self._disk():
                    raise OSError(cause.errno, cause.strerror) from error
            raise cause from error
        except errors.RayError as error:
            raise RuntimeError(
                f"each worker must live until the corpus is written: got hosts={self._hosts} with "
                f"one dead in each of {_RETRIES + 1} runs of {what} ({type(error).__name__}). Give "
                "each worker more memory, or divide large files; finished shards are kept."
            ) from error
        self._running.discard(reference)
        return result


def _encode(jobs: list[Any], task: Task, place: Place, name: str) -> Staged:
    """Runs in a worker of Ray."""
    ray = importlib.import_module("ray")

    key = jobs[0].binary()
    if key not in _jobs:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the workers are the parallelism
        _jobs.clear()
        _jobs[key] = ray.get(jobs[0])
    return _staged.encode(_jobs[key], task, place=place, name=name)


def _without_records(task: Task) -> Task:
    """Returns a task whose records Ray has, so that this process keeps none."""
    for piece in task.pieces:
        if piece.records is not None:
            piece.records.clear()
    return task
