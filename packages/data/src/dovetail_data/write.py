# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Writing a corpus: documents, encoded once, to ArrayRecord shards.

The files depend on the source, the encoder and shard_bytes alone: not on the number of workers,
nor on how often the writer was killed. Parts of the input are grouped into chunks; workers encode
chunks, one process writes them in order, and a shard ends with the chunk that fills it. So a small
corpus is encoded in parallel too, and a crash costs the shard in progress.
"""

import dataclasses
import errno
import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from dovetail_data import index
from dovetail_data._shard import Shard
from dovetail_data._workers import Chunk, Job, encode_all
from dovetail_data.corpus import Corpus
from dovetail_data.encode import Encoder
from dovetail_data.ledger import Ledger, check_identity, open_ledger
from dovetail_data.record import Raw
from dovetail_data.sources import Part, Source

_CHUNK_BYTES = 1 << 20  # of input: enough to share among workers, small beside their memory


@dataclasses.dataclass(frozen=True, kw_only=True)
class Progress:
    """How far `write` is, what earlier runs finished included. bytes: of the input."""

    parts: int
    total_parts: int
    bytes: int
    total_bytes: int
    documents: int
    tokens: int


def write(
    source: Source,
    directory: str | Path,
    *,
    encoder: Encoder,
    shard_bytes: int = 1 << 28,
    workers: int = 1,
    progress: Callable[[Progress], object] | None = None,
) -> Corpus:
    """Encodes `source` into `directory`, or goes on where a killed run stopped.

    shard_bytes: a shard ends when it holds as many bytes of ids. workers: processes that encode;
    1 encodes in this one. More need a script guarded by `if __name__ == "__main__":`, as any
    spawned process does. progress: called after every chunk.

    A finished corpus is opened, not written again. ValueError when the directory holds another
    source or encoder, when there is no document, or when an id is outside the vocabulary; OSError
    when the disk is full: finished shards stay, and the same call goes on from them.
    """
    for name, value in (("shard_bytes", shard_bytes), ("workers", workers)):
        if value < 1:
            raise ValueError(f"{name} must be >= 1: got {name}={value}. Pass 1 or more.")
    directory = Path(directory)
    identity = {
        "source": source.fingerprint,
        "encoder": encoder.fingerprint,
        "shard_bytes": shard_bytes,
    }
    if (directory / index.NAME).exists():
        check_identity(index.read_index(directory), identity, directory)
        return Corpus(directory)
    directory.mkdir(parents=True, exist_ok=True)
    job = Job(source=source, encoder=encoder, codec=Raw.of(encoder.tokenizer.vocab_size))
    parts = source.parts()
    chunks = _chunks(parts)
    # The ledger counts chunks: another version of this code must not cut the input otherwise.
    resumable = {**identity, "parts": len(parts), "chunks": len(chunks)}
    with open_ledger(directory, identity=resumable) as ledger:
        shards = _write_shards(
            job, chunks, directory, ledger=ledger, shard_bytes=shard_bytes, workers=workers
        )
        with closing(shards) as events:
            for event in events:
                if progress is not None:
                    progress(event)
        facts = {
            "codec": {"name": "raw", **dataclasses.asdict(job.codec)},
            "vocab_size": encoder.tokenizer.vocab_size,
            "tokenizer": encoder.tokenizer.fingerprint,
            **identity,
        }
        with _disk(directory, ledger):
            index.write_index(
                directory,
                shards=[line["shard"] for line in ledger.lines],
                parts=[part.name for part in parts],
                facts=facts,
            )
    return Corpus(directory)


def _write_shards(
    job: Job,
    chunks: list[Chunk],
    directory: Path,
    *,
    ledger: Ledger,
    shard_bytes: int,
    workers: int,
) -> Generator[Progress, None, None]:
    """Writes what the ledger lacks; yields after each chunk."""
    done = ledger.lines[-1]["chunks"] if ledger.lines else 0
    documents = sum(line["shard"]["documents"] for line in ledger.lines)
    tokens = sum(line["shard"]["tokens"] for line in ledger.lines)
    bytes_before = [0, *itertools.accumulate(sum(p.bytes for _, p in chunk) for chunk in chunks)]
    shard: Shard | None = None
    try:
        with closing(encode_all(job, chunks[done:], workers=workers)) as encoded:
            for written, chunk in enumerate(encoded, start=done + 1):
                with _disk(directory, ledger):
                    shard = shard or Shard(directory, len(ledger.lines))
                    shard.add(chunk)
                    if shard.bytes >= shard_bytes or written == len(chunks):
                        ledger.append({"chunks": written, "shard": shard.close()})
                        shard = None
                documents += len(chunk.records)
                tokens += chunk.tokens
                yield Progress(
                    parts=chunks[written - 1][-1][0] + 1,
                    total_parts=chunks[-1][-1][0] + 1,
                    bytes=bytes_before[written],
                    total_bytes=bytes_before[-1],
                    documents=documents,
                    tokens=tokens,
                )
    finally:
        if shard is not None:
            shard.discard()


def _chunks(parts: Sequence[Part]) -> list[Chunk]:
    """Consecutive parts, each chunk ending with the part that makes it _CHUNK_BYTES long."""
    chunks: list[list[tuple[int, Part]]] = []
    room = 0
    for i, part in enumerate(parts):
        if room <= 0:
            chunks.append([])
            room = _CHUNK_BYTES
        chunks[-1].append((i, part))
        room -= part.bytes
    return list(chunks)


@contextmanager
def _disk(directory: Path, ledger: Ledger) -> Iterator[None]:
    """Says what to do when the disk is full. ArrayRecord reports it as a RuntimeError."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        raise OSError(
            getattr(error, "errno", None) or errno.EIO,
            f"the disk must take the corpus: got {error} in directory={directory}. Free space and "
            f"call write(...) again: it goes on from {len(ledger.lines)} finished shards.",
        ) from error
