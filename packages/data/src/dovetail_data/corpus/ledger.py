# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The directory of an unfinished corpus. Its ledger has the finished shards; writing resumes there.

A finished shard is one line of JSON, appended after the shard's files were renamed into place and
their bytes reached the disk. A line cut off by a crash is dropped; its shard is written again, with
the same bytes. Each line ends with the sha256 of itself and the lines before it, so a changed byte
is found before writing goes on.
"""

import errno
import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from dovetail_data._durable import sync, write_file
from dovetail_data.damage import DamageError
from dovetail_data.sources.source import Part

LEDGER = "ledger.jsonl"
STAGED = "staged"  # of the directory inside the corpus's, deleted at the end
_DIGEST = "sha256"
_NOTED, _MENDED = "damaged_files", "mended"  # keys of the lines that are no shard's
_OF_SOURCE = {"source", "parts", "chunks"}  # entries of an identity that follow from the source
_SHARD = re.compile(r"(?P<partial>partial-([0-9a-f]{8}-)?)?(?P<number>\d{5,})\.(array_record|npy)")
_PARTIAL = re.compile(r"\.[\w.]+\.[0-9a-f]{8}\.partial")  # of a file whose writer was killed
_logger = logging.getLogger(__name__)


Resume = Callable[[dict[str, Any] | None, list[dict[str, Any]]], int | None]
"""Says how many shards of another source stay, from the note of its damaged files; None refuses."""


@contextmanager
def open_ledger(
    directory: Path, *, identity: dict[str, Any], resume: Resume | None = None
) -> Iterator["Ledger"]:
    """Opens and locks the ledger of `directory`. Its first line is the identity.

    Args:
        directory: Directory of the corpus.
        identity: Values that must not change between the runs that write one corpus.
        resume: Called if they differ in the source alone.

    Raises:
        ValueError: The ledger has another identity, or the directory holds other files.
        DamageError: The ledger is damaged.
        RuntimeError: Another process is writing the corpus.
    """
    path = directory / LEDGER
    strangers = [] if path.exists() else sorted(entry.name for entry in directory.iterdir())
    if strangers:
        raise ValueError(
            f"a corpus must be written to an empty directory: got directory={directory} with "
            f"{strangers[:3]}. Give another one."
        )
    with open(path, "a+b") as stream:
        _lock(stream, directory)
        lines, digest = _read(stream, path)
        ledger = Ledger(path, stream, digest=digest)
        for line in lines:
            ledger.replay(line)
        if not lines:
            ledger.write(identity)
            sync(directory)
        elif (kept := _kept(ledger, identity, resume)) is not None:
            ledger.write({_MENDED: identity, "kept": kept})
        else:
            check_identity(ledger.identity, identity, directory)
        yield ledger


def _kept(ledger: "Ledger", identity: dict[str, Any], resume: Resume | None) -> int | None:
    """Returns the number of shards that stay for another source; None for the same or none."""
    differ = {name for name, value in identity.items() if ledger.identity.get(name) != value}
    if resume is None or "source" not in differ or differ - _OF_SOURCE:
        return None
    return resume(ledger.noted, ledger.lines)


class Ledger:
    """The lines of the finished shards, in order.

    Args:
        path: Its file.
        stream: The open file.
        digest: Digest of all lines in the file; None for a ledger without digests.

    Attributes:
        identity: The values of the source, the encoder and the options.
        lines: One entry for each finished shard.
        noted: The note of the files whose damage ended the last run; None without.
    """

    def __init__(self, path: Path, stream: BinaryIO, *, digest: str | None) -> None:
        self._path = path
        self._stream = stream
        self._digest = digest
        self._straight = True  # no line of the file is about an earlier run's end
        self.identity: dict[str, Any] = {}
        self.lines: list[dict[str, Any]] = []
        self.noted: dict[str, Any] | None = None

    def append(self, line: dict[str, Any]) -> None:
        """Records a finished shard. The line is on the disk when this returns."""
        self.write(line)

    def note(self, noted: dict[str, Any]) -> None:
        """Records the files whose damage ends this run."""
        if noted != self.noted:
            self.write({_NOTED: noted})

    def write(self, line: dict[str, Any]) -> None:
        content, self._digest = _encoded(line, self._digest)
        self._stream.write(content)
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self.replay(line)

    def replay(self, line: dict[str, Any]) -> None:
        """Takes in one line of the file."""
        if not self.identity:
            self.identity = line
        elif _NOTED in line:
            self.noted, self._straight = line[_NOTED], False
        elif _MENDED in line:
            self.identity, self._straight = line[_MENDED], False
            del self.lines[line["kept"] :]
            self.noted = None
        else:
            self.lines.append(line)

    def straighten(self) -> None:
        """Leaves the identity and the shards alone in the file: the bytes of an undisturbed run."""
        if self._straight:
            return
        content, digest = b"", None if self._digest is None else ""
        for line in (self.identity, *self.lines):
            encoded, digest = _encoded(line, digest)
            content += encoded
        write_file(self._path, content)


def _lock(stream: BinaryIO, directory: Path) -> None:
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise RuntimeError(
            f"one process at a time may write a corpus: got directory={directory}, which another "
            "is writing. Wait for it, or give another directory."
        ) from error


def _encoded(line: dict[str, Any], before: str | None) -> tuple[bytes, str | None]:
    """Returns a line as bytes with its digest, and this digest.

    `before` is the digest of the lines before it; "" at the start, None for a ledger without.
    """
    if before is None:
        return json.dumps(line).encode() + b"\n", None
    digest = hashlib.sha256(f"{before}{json.dumps(line)}".encode()).hexdigest()
    return json.dumps({**line, _DIGEST: digest}).encode() + b"\n", digest


def _read(stream: BinaryIO, path: Path) -> tuple[list[dict[str, Any]], str | None]:
    """Returns the lines of a ledger without their digests, and the last digest."""
    stream.seek(0)
    content = stream.read()
    whole = content.rfind(b"\n") + 1
    stream.truncate(whole)
    raw = content[:whole].split(b"\n")[:-1]
    try:
        lines = [json.loads(line) for line in raw]
        digest = None if lines and _is_older(lines) else ""
        for i, line in enumerate(lines):
            stored = line.pop(_DIGEST, None)
            expected, digest = _encoded(line, digest)
            if (raw[i] + b"\n", stored) != (expected, digest):
                raise ValueError(f"line {i + 1} without its {_DIGEST}")
    except (ValueError, RecursionError, AttributeError) as error:
        raise DamageError(
            f"a ledger must be as it was written: got {path}: {error}. "
            "Delete the directory and write it again."
        ) from error
    if digest is None:
        _logger.warning(
            "a ledger should have a digest in each line: got %s, of an older version. It is "
            "continued without.",
            path,
        )
    return lines, digest


def _is_older(lines: list[dict[str, Any]]) -> bool:
    """Whether a ledger is of a version without digests: its first line had these entries alone."""
    older = {"source", "encoder", "shard_bytes", "parts", "chunks", "cut"}
    return set(lines[0]) == older and not any(_DIGEST in line for line in lines)


def check_identity(stored: dict[str, Any], expected: dict[str, Any], directory: str | Path) -> None:
    """Raises ValueError with the first entry in which a corpus on disk differs from this call.

    Args:
        stored: Identity of the corpus on disk.
        expected: Identity of this call.
        directory: Directory for the message.
    """
    for name, value in expected.items():
        if stored.get(name) != value:
            raise ValueError(
                f"{directory} must be continued with the same {name}: got {name}={value!r}, it "
                f"holds {stored.get(name)!r}. Give another directory, or delete this one."
            )


def check_outside(directory: Path, parts: Sequence[Part]) -> None:
    """Raises ValueError if the source has files in `directory`: the corpus would change it."""
    root = os.path.join(os.path.abspath(directory), "")
    inside = next((p.path for p in parts if p.path.startswith(root)), None)
    if inside is not None:
        raise ValueError(
            f"a corpus's directory must not hold files of its source: got {inside} in "
            f"directory={directory}. Give a directory outside, or a pattern that leaves it out."
        )


def tidy(directory: Path, shards: int) -> None:
    """Deletes shards behind the last, of a source before it was mended, and unfinished files."""
    for path in directory.iterdir():
        match = _SHARD.fullmatch(path.name)
        stale = match and (match["partial"] or int(match["number"]) >= shards)
        if stale or _PARTIAL.fullmatch(path.name):
            path.unlink()
    if (directory / STAGED).exists():
        shutil.rmtree(directory / STAGED)


@contextmanager
def disk_advice(directory: Path, ledger: Ledger) -> Iterator[None]:
    """Adds advice to the error of a full disk. ArrayRecord reports it as a RuntimeError."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        raise OSError(
            getattr(error, "errno", None) or errno.EIO,
            f"the disk must take the corpus: got {error} in directory={directory}. Free space and "
            f"call write(...) again: it goes on from {len(ledger.lines)} finished shards.",
        ) from error
