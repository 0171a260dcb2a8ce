# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Writing of a corpus: documents, encoded once, in ArrayRecord shards.

The files depend on the source, the encoder and shard_bytes alone, not on the number of workers or
of restarts. Parts of the input are grouped into chunks. Workers encode chunks, or slices of a large
one; one process writes them in order, and a shard ends with the chunk or slice that fills it. A
small corpus is therefore encoded in parallel too, and a crash costs one unfinished shard.

With `hosts`, workers of Ray write the shards too. This process then adds up the sizes of documents,
to find the end of each shard (see `_hosts`).
"""

import dataclasses
import functools
import itertools
import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from dovetail_data import _elsewhere
from dovetail_data._arguments import (
    is_remote,
    require_integer,
    require_path,
    require_source,
    wrong,
)
from dovetail_data.corpus import index
from dovetail_data.corpus.corpus import Corpus
from dovetail_data.corpus.ledger import (
    LEDGER,
    Ledger,
    check_identity,
    check_outside,
    disk_advice,
    open_ledger,
    tidy,
)
from dovetail_data.corpus.tokenizer_files import save_tokenizer
from dovetail_data.encode.encoder import Encoder, wrong_encoder
from dovetail_data.record import Codec
from dovetail_data.sources.source import Part, Source
from dovetail_data.writing import ray as _ray
from dovetail_data.writing import staged as _staged
from dovetail_data.writing.hosts import Hosts
from dovetail_data.writing.mending import mended, note
from dovetail_data.writing.upload import Upload
from dovetail_data.writing.workers import (
    Chunk,
    Engine,
    Job,
    Local,
    Result,
    check_hosts,
    cut,
    cutting,
    tasks,
)

_logger = logging.getLogger(__name__)
_LISTED = 20  # corrupt records in an error: a screenful


class CorruptInputError(ValueError):
    """More records of the input are damaged than `max_corrupt` allows."""

    exit_code = 3  # of the command


@dataclasses.dataclass(frozen=True, kw_only=True)
class Progress:
    """Progress of `write`, including the work of earlier runs.

    Attributes:
        parts: Parts of the input that are finished.
        total_parts: Parts of the input.
        bytes: Bytes of the input that are finished.
        total_bytes: Bytes of the input.
        documents: Documents written.
        tokens: Ids written.
        dropped: Records left out because nothing in them can be trained on.
        corrupt: Records that could not be read or encoded.
    """

    parts: int
    total_parts: int
    bytes: int
    total_bytes: int
    documents: int
    tokens: int
    dropped: int
    corrupt: int


@_elsewhere.write
def write(
    source: Source,
    directory: str | Path,
    *,
    encoder: Encoder,
    shard_bytes: int = 1 << 28,
    workers: int = 1,
    hosts: int | None = None,
    ray: str | None = None,
    max_corrupt: int = 0,
    progress: Callable[[Progress], object] | None = None,
) -> Corpus:
    """Encodes `source` into a corpus in `directory`, or resumes an interrupted write.

    The files do not depend on `workers`, `hosts` or interruptions. A finished corpus is opened, not
    written again.

    Args:
        source: The records, such as `text("books")` or `jsonl("chats.jsonl")`.
        directory: Directory of the corpus, empty or new, without files of the source; or its URL,
            such as "s3://bucket/corpus" (see `Corpus`). Each shard is then written to the user's
            cache directory, uploaded, read back and deleted; the index comes last.
        encoder: Turns records into documents: `Text`, `Chat`, `Preference`, `Prompt` or `Image`.
        shard_bytes: Size at which a shard ends, in bytes of stored documents.
        workers: Processes that encode; more than 1 need `if __name__ == "__main__":` in a script.
        hosts: Number of workers of Ray that encode and write shards, instead of `workers`. Needs
            the extra `ray`. All hosts must see the source's files and `directory` at their paths.
        ray: Address of the Ray cluster with these workers. Default: the one that this process is
            connected to, or else a local Ray that is started and stopped.
        max_corrupt: Records that may be damaged. They are left out, counted and listed in
            `Corpus.corrupt`. One more raises.
        progress: Called after every chunk of about 1 MB with a `Progress`.

    Returns:
        The corpus.

    Raises:
        TypeError: `source` is not a source, such as a path.
        ImportError: `hosts` is given and Ray is not installed.
        ValueError: The directory holds another source or encoder, no document is left, an id is
            outside the vocabulary, or more than `max_corrupt` records are damaged.
        RuntimeError: Another process writes to the directory, or a worker died.
        OSError: The disk is full, or the remote storage gave up. Finished shards stay, and the
            same call resumes from them.

    Example:

        >>> from pathlib import Path
        >>> from dovetail_data import Bytes, Text, text
        >>> _ = Path("a.txt").write_text("To be, or not to be: that is the question.")
        >>> write(text("a.txt"), "corpus", encoder=Text(Bytes()))
        Corpus('corpus', documents=1, tokens=44, fields=['tokens'])
    """
    for name, value, least in (
        ("shard_bytes", shard_bytes, 1),
        ("workers", workers, 1),
        ("max_corrupt", max_corrupt, 0),
    ):
        require_integer(name, value, f"Pass {least} or more.", least=least)
    check_hosts(hosts, ray, workers)
    require_source(source)
    if isinstance(encoder, type) or not isinstance(encoder, Encoder):
        raise wrong_encoder(encoder)
    if progress is not None and not callable(progress):
        raise wrong("progress", "a function", progress, "Pass one that takes a Progress, or None.")
    parts = source.parts()
    identity = {
        "source": source.fingerprint,
        "encoder": encoder.fingerprint,
        "shard_bytes": shard_bytes,
    }
    upload = Upload(str(directory)) if is_remote(directory) else None
    local = require_path("directory", directory) if upload is None else upload.directory
    check_outside(local, parts)
    stored = _finished(local) if upload is None else upload.finished()
    if stored is not None:
        check_identity(stored, identity, directory)
        return Corpus(directory)
    local.mkdir(parents=True, exist_ok=True)
    if upload is not None:
        upload.begin()
    job = Job(source=source, encoder=encoder, codec=Codec(encoder.layout))
    chunks = cut(parts)
    resumable = {**identity, "parts": len(parts), "chunks": len(chunks), "cut": cutting()}
    resume = functools.partial(_resume, source, chunks, local)
    with open_ledger(local, identity=resumable, resume=resume) as ledger:
        run = _Run(
            job=job, parts=parts, chunks=chunks, directory=local, ledger=ledger, upload=upload
        )
        with (
            run.engine(workers=workers, hosts=hosts, address=ray) as engine,
            closing(run.write(engine, shard_bytes=shard_bytes, max_corrupt=max_corrupt)) as events,
        ):
            for event in events:
                if progress is not None:
                    progress(event)
        run.finish(identity)
    return Corpus(directory)


def _finished(directory: Path) -> dict[str, Any] | None:
    """Returns the index of a finished corpus, None for a directory without one."""
    return index.read_index(directory) if (directory / index.NAME).exists() else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Run:
    """One run of the writer over `chunks`, from the ledger's last entry."""

    job: Job
    parts: Sequence[Part]
    chunks: list[Chunk]
    directory: Path
    ledger: Ledger
    upload: Upload | None

    @contextmanager
    def engine(self, *, workers: int, hosts: int | None, address: str | None) -> Iterator[Engine]:
        """Yields the engine for the shards that are not in the ledger.

        Args:
            workers: See `dovetail_data.write`.
            hosts: See `dovetail_data.write`.
            address: `ray` of `dovetail_data.write`.
        """
        number = len(self.ledger.lines)
        if hosts is None:
            local = Local(self.job, self.directory, number=number, workers=workers)
            with closing(local):
                yield local
            return
        disk = functools.partial(disk_advice, self.directory, self.ledger)
        with _ray.connected(hosts=hosts, address=address) as (ray, own):
            with disk():
                place = _staged.begin(self.directory, self.ledger.identity)
            remote = Hosts(
                ray,
                job=self.job,
                place=place,
                hosts=hosts,
                queued=hosts if own else 0,  # the CPUs of the own Ray limit the running tasks
                number=number,
                start=self._done(),
                disk=disk,
            )
            with closing(remote):
                yield remote

    def _done(self) -> tuple[int, int]:
        """Returns the number of finished chunks, and of finished slices of the next."""
        last = self.ledger.lines[-1] if self.ledger.lines else {"chunks": 0, "slices": 0}
        return last["chunks"], last["slices"]

    def write(
        self, engine: Engine, *, shard_bytes: int, max_corrupt: int
    ) -> Generator[Progress, None, None]:
        """Writes the tasks that are not in the ledger; yields after each.

        Args:
            engine: The engine.
            shard_bytes: See `dovetail_data.write`.
            max_corrupt: See `dovetail_data.write`.
        """
        written, slices = self._done()
        left = tasks(self.job.source, self.chunks, done=written, slices=slices)
        totals = _Totals(self.ledger.lines, self.chunks)
        damaged: set[int] = set()  # parts, since the last finished shard
        if self.upload is not None:
            self.upload.shards(self.ledger.lines)  # of a run that was killed
        self._check_corrupt(totals, max_corrupt)
        with closing(engine.results(left)) as results:
            for result, ends in results:
                written, slices = (written + 1, 0) if ends else (written, slices + 1)
                totals.add(result)
                damaged |= result.damaged
                if len(totals.corrupt) > max_corrupt:
                    self._record(engine, wait=True)
                self._check_corrupt(totals, max_corrupt)
                with disk_advice(self.directory, self.ledger):
                    engine.add(result)
                    del result  # a long document is not to stay until the shard is closed
                    if engine.bytes >= shard_bytes or written == len(self.chunks):
                        parts = {"damaged": sorted(damaged)} if damaged else {}
                        engine.end_shard({"chunks": written, "slices": slices, **parts})
                        damaged = set()
                self._record(engine, wait=False)
                yield totals.progress(written)
        self._record(engine, wait=True)

    def finish(self, identity: dict[str, Any]) -> None:
        """Writes the index, with which the corpus is finished."""
        encoder = self.job.encoder
        facts = {
            "layout": {name: field.described() for name, field in encoder.layout.items()},
            "manifest": dict(encoder.manifest),
            **identity,
        }
        with disk_advice(self.directory, self.ledger):
            self.ledger.straighten()
            tidy(self.directory, len(self.ledger.lines))
            index.write_index(
                self.directory,
                shards=[line["shard"] for line in self.ledger.lines],
                parts=[p.name for p in self.parts],
                facts=facts,
                others=[LEDGER, *save_tokenizer(encoder.tokenizer, self.directory)],
            )
        if self.upload is not None:
            self.upload.finish()

    def _record(self, engine: Engine, *, wait: bool) -> None:
        """Appends the lines of ended shards to the ledger, and uploads these shards."""
        for line in engine.lines(wait=wait):
            with disk_advice(self.directory, self.ledger):
                self.ledger.append(line)
            if self.upload is not None:
                self.upload.shards([line])

    def _check_corrupt(self, totals: "_Totals", max_corrupt: int) -> None:
        """Raises CorruptInputError for more than `max_corrupt` records, and notes their files."""
        if len(totals.corrupt) <= max_corrupt:
            return
        noted = note(self.job.source, self.parts, totals.damaged)
        if noted is not None:
            with disk_advice(self.directory, self.ledger):
                self.ledger.note(noted)
        raise _too_many(totals.corrupt, max_corrupt)


class _Totals:
    """Totals of the finished shards and the chunks added since."""

    def __init__(self, lines: list[dict[str, Any]], chunks: list[Chunk]) -> None:
        self._chunks = chunks
        shards = [line["shard"] for line in lines]
        self.damaged = {number for line in lines for number in line.get("damaged", ())}
        self._bytes = [0, *itertools.accumulate(sum(p.bytes for _, p in chunk) for chunk in chunks)]
        self.documents, self.tokens, self.dropped = (
            sum(shard[name] for shard in shards) for name in ("documents", "tokens", "dropped")
        )
        self.corrupt = [
            (record["where"], record["error"]) for shard in shards for record in shard["corrupt"]
        ]

    def add(self, chunk: Result) -> None:
        self.documents += chunk.documents
        self.tokens += chunk.tokens
        self.dropped += chunk.dropped
        self.corrupt += chunk.corrupt
        self.damaged |= chunk.damaged

    def progress(self, written: int) -> Progress:
        return Progress(
            parts=self._chunks[written - 1][-1][0] + 1 if written else 0,
            total_parts=self._chunks[-1][-1][0] + 1,
            bytes=self._bytes[written],
            total_bytes=self._bytes[-1],
            documents=self.documents,
            tokens=self.tokens,
            dropped=self.dropped,
            corrupt=len(self.corrupt),
        )


def _too_many(records: list[tuple[str, str]], max_corrupt: int) -> CorruptInputError:
    listed = "\n".join(f"  {where}: {error}" for where, error in records[:_LISTED])
    more = f"\n  and {len(records) - _LISTED} more" if len(records) > _LISTED else ""
    return CorruptInputError(
        f"at most max_corrupt={max_corrupt} records may be corrupt: got {len(records)} so far:"
        f"\n{listed}{more}\nMend them and call write(...) again, or pass max_corrupt= the number "
        "that may be left out. Finished shards stay."
    )


def _resume(
    source: Source,
    chunks: list[Chunk],
    directory: Path,
    noted: dict[str, Any] | None,
    lines: list[dict[str, Any]],
) -> int | None:
    """Returns the number of shards that stay for a mended source; None for another source."""
    change = mended(source, chunks, noted, lines)
    if change is None:
        return None
    _logger.warning(
        "%s is continued with a mended source: changed are %s. %d of %d finished shards stay; the "
        "others and the rest of the source are written again.",
        directory,
        ", ".join(change.files),
        change.kept,
        len(lines),
    )
    return change.kept
