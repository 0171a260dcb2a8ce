# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Encoding chunks of the input, here or in spawned processes, always in order."""

import collections
import dataclasses
import multiprocessing
import os
import signal
import threading
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait

import numpy as np

from dovetail_data.encode import Encoder
from dovetail_data.record import Raw
from dovetail_data.sources import Part, Source

Chunk = Sequence[tuple[int, Part]]
"""Parts that are encoded together, each with its place among all parts."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Encoded:
    """A chunk's documents as records; table: i32[documents, 2], (tokens, part) of each."""

    records: list[bytes]
    table: np.ndarray
    tokens: int
    text_bytes: int
    dropped: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """What a worker needs to encode any chunk."""

    source: Source
    encoder: Encoder
    codec: Raw

    def encode(self, chunk: Chunk) -> Encoded:
        read = [(i, record) for i, part in chunk for record in self.source.read(part)]
        arrays = self.encoder([record for _, record in read])
        kept = [
            (i, self._checked(array["tokens"], part=i))
            for (i, _), array in zip(read, arrays, strict=True)
            if array is not None
        ]
        return Encoded(
            records=[self.codec.encode(ids) for _, ids in kept],
            table=np.array([(len(ids), i) for i, ids in kept], "<i4").reshape(-1, 2),
            tokens=sum(len(ids) for _, ids in kept),
            text_bytes=sum(len(record["text"].encode()) for _, record in read),
            dropped=len(read) - len(kept),
        )

    def _checked(self, ids: np.ndarray, *, part: int) -> np.ndarray:
        size = self.encoder.tokenizer.vocab_size
        if ids.dtype != np.int32 or ids.ndim != 1:
            raise ValueError(
                f"an encoder must give tokens as int32[n]: got {ids.dtype}{list(ids.shape)}. "
                "Return them with .astype(np.int32)."
            )
        if ids.size and not 0 <= ids.min() <= ids.max() < size:
            worst = ids.min() if ids.min() < 0 else ids.max()
            raise ValueError(
                f"each id must lie in [0, vocab_size={size}): got id={worst} in "
                f"{self.source.parts()[part].name}. Mend the tokenizer's vocab_size or its encode."
            )
        return ids


def encode_all(
    job: Job, chunks: Sequence[Chunk], *, workers: int
) -> Generator[Encoded, None, None]:
    """The encoded chunks, in the order of `chunks`."""
    if workers == 1:
        yield from map(job.encode, chunks)
        return
    executor = ProcessPoolExecutor(
        workers,
        # Not fork: a forked child inherits the locks of the tokenizer's threads and hangs.
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
        initargs=(job,),
    )
    pending: collections.deque[Future[Encoded]] = collections.deque()
    try:
        for chunk in chunks:
            pending.append(executor.submit(_encode_in_worker, chunk))
            if len(pending) > 2 * workers:  # one running and one waiting for each
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool as error:
        raise RuntimeError(
            f"each worker must live until the corpus is written: got workers={workers} with one "
            'dead. Guard the script by `if __name__ == "__main__":`, or pass fewer workers if '
            "memory ran out; finished shards are kept."
        ) from error
    finally:
        executor.shutdown(cancel_futures=True)


_job: Job | None = None  # in a worker: pickled once per process, not once per chunk


def _start_worker(job: Job) -> None:
    global _job
    _job = job
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the writer's to handle
    threading.Thread(target=_die_with_parent, daemon=True).start()


def _die_with_parent() -> None:
    # A writer that was killed cannot end its workers; they would wait for work for ever.
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _encode_in_worker(chunk: Chunk) -> Encoded:
    assert _job is not None
    return _job.encode(chunk)
