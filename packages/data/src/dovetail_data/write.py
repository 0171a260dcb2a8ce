# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Writing of a corpus: documents, encoded once, in ArrayRecord shards.

The files depend on the source, the encoder and shard_bytes alone, not on the number of workers or
of restarts. Parts of the input are grouped into chunks. Workers encode chunks, or slices of a large
one; one process writes them in order, and a shard ends with the chunk or slice that fills it. A
small corpus is therefore encoded in parallel too, and a crash costs one unfinished shard.
"""

import dataclasses
import errno
import functools
import itertools
import logging
import os
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from dovetail_data import index
from dovetail_data._arguments import is_remote, require_integer, require_path, require_source, wrong
from dovetail_data._mending import mended, note
from dovetail_data._shard import Shard
from dovetail_data._upload import Upload
from dovetail_data._workers import Chunk, Encoded, Job, cut, cutting, encode_all, tasks
from dovetail_data.corpus import Corpus
from dovetail_data.encode.encoder import Encoder
from dovetail_data.ledger import NAME as LEDGER
from dovetail_data.ledger import Ledger, check_identity, open_ledger
from dovetail_data.record import Codec
from dovetail_data.sources.source import Part, Source
from dovetail_data.tokenizer_files import save_tokenizer

_logger = logging.getLogger(__name__)
_SHARD = re.compile(r"(?P<partial>partial-)?(?P<number>\d{5,})\.(array_record|npy)")
_PARTIAL = re.compile(r"\.[\w.]+\.[0-9a-f]{8}\.partial")  # of a file whose writer was killed
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


def write(
    source: Source,
    directory: str | Path,
    *,
    encoder: Encoder,
    shard_bytes: int = 1 << 28,
    workers: int = 1,
    max_corrupt: int = 0,
    progress: Callable[[Progress], object] | None = None,
) -> Corpus:
    """Encodes `source` into a corpus in `directory`, or resumes an interrupted write.

    The files do not depend on `workers` or on interruptions. A finished corpus is opened, not
    written again.

    Args:
        source: The records, such as `text("books")` or `jsonl("chats.jsonl")`.
        directory: Directory of the corpus, empty or new, without files of the source; or its URL,
            such as "s3://bucket/corpus" (see `Corpus`). Each shard is then written to the user's
            cache directory, uploaded, read back and deleted; the index comes last.
        encoder: Turns records into documents: `Text`, `Chat`, `Preference`, `Prompt` or `Image`.
        shard_bytes: Size at which a shard ends, in bytes of stored documents.
        workers: Processes that encode; 1 encodes in this one. More need a script guarded by `if
            __name__ == "__main__":`.
        max_corrupt: Records that may be damaged. They are left out, counted and listed in
            `Corpus.corrupt`. One more raises.
        progress: Called after every chunk of about 1 MB with a `Progress`.

    Returns:
        The corpus.

    Raises:
        TypeError: `source` is not a source, such as a path.
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
    require_source(source)
    if isinstance(encoder, type) or not isinstance(encoder, Encoder):
        remedy = "Pass Text(tokenizer), or Chat, Preference, Prompt or Image."
        raise wrong("encoder", "an Encoder", encoder, remedy)
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
    _check_outside(local, parts)
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
        with closing(run.write(shard_bytes, workers=workers, max_corrupt=max_corrupt)) as events:
            for event in events:
                if progress is not None:
                    progress(event)
        facts = {
            "layout": {name: field.described() for name, field in encoder.layout.items()},
            "manifest": dict(encoder.manifest),
            **identity,
        }
        with _disk(local, ledger):
            ledger.straighten()
            _tidy(local, len(ledger.lines))
            index.write_index(
                local,
                shards=[line["shard"] for line in ledger.lines],
                parts=[p.name for p in parts],
                facts=facts,
                others=[LEDGER, *save_tokenizer(encoder.tokenizer, local)],
            )
        if upload is not None:
            upload.finish()
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

    def write(
        self, shard_bytes: int, *, workers: int, max_corrupt: int
    ) -> Generator[Progress, None, None]:
        """Writes the tasks that are not in the ledger; yields after each.

        Args:
            shard_bytes: See `dovetail_data.write`.
            workers: See `dovetail_data.write`.
            max_corrupt: See `dovetail_data.write`.
        """
        last = self.ledger.lines[-1] if self.ledger.lines else {"chunks": 0, "slices": 0}
        written, slices = last["chunks"], last["slices"]
        left = tasks(self.job.source, self.chunks, done=written, slices=slices)
        totals = _Totals(self.ledger.lines, self.chunks)
        shard: Shard | None = None
        damaged: set[int] = set()  # parts, since the last finished shard
        if self.upload is not None:
            self.upload.shards(self.ledger.lines)  # of a run that was killed
        try:
            self._check_corrupt(totals, max_corrupt)
            with closing(encode_all(self.job, left, workers=workers)) as results:
                for encoded, ends in results:
                    written, slices = (written + 1, 0) if ends else (written, slices + 1)
                    totals.add(encoded)
                    damaged |= encoded.damaged
                    self._check_corrupt(totals, max_corrupt)
                    with _disk(self.directory, self.ledger):
                        shard = shard or Shard(self.directory, len(self.ledger.lines))
                        shard.add(encoded)
                        del encoded  # a long document is not to stay until the shard is closed
                        if shard.bytes >= shard_bytes or written == len(self.chunks):
                            line = {"chunks": written, "slices": slices}
                            parts = {"damaged": sorted(damaged)} if damaged else {}
                            self.ledger.append({**line, **parts, "shard": shard.close()})
                            shard, damaged = None, set()
                    if shard is None and self.upload is not None:
                        self.upload.shards(self.ledger.lines[-1:])
                    yield totals.progress(written)
        finally:
            if shard is not None:
                shard.discard()

    def _check_corrupt(self, totals: "_Totals", max_corrupt: int) -> None:
        """Raises CorruptInputError for more than `max_corrupt` records, and notes their files."""
        if len(totals.corrupt) <= max_corrupt:
            return
        noted = note(self.job.source, self.parts, totals.damaged)
        if noted is not None:
            with _disk(self.directory, self.ledger):
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

    def add(self, chunk: Encoded) -> None:
        self.documents += len(chunk.records)
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


def _check_outside(directory: Path, parts: Sequence[Part]) -> None:
    """Raises ValueError if the source has files in `directory`: the corpus would change it."""
    root = os.path.join(os.path.abspath(directory), "")
    inside = next((p.path for p in parts if p.path.startswith(root)), None)
    if inside is not None:
        raise ValueError(
            f"a corpus's directory must not hold files of its source: got {inside} in "
            f"directory={directory}. Give a directory outside, or a pattern that leaves it out."
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


def _tidy(directory: Path, shards: int) -> None:
    """Deletes shards behind the last, of a source before it was mended, and unfinished files."""
    for path in directory.iterdir():
        match = _SHARD.fullmatch(path.name)
        stale = match and (match["partial"] or int(match["number"]) >= shards)
        if stale or _PARTIAL.fullmatch(path.name):
            path.unlink()


@contextmanager
def _disk(directory: Path, ledger: Ledger) -> Iterator[None]:
    """Adds advice to the error of a full disk. ArrayRecord reports it as a RuntimeError."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        raise OSError(
            getattr(error, "errno", None) or errno.EIO,
            f"the disk must take the corpus: got {error} in directory={directory}. Free space and "
            f"call write(...) again: it goes on from {len(ledger.lines)} finished shards.",
        ) from error
