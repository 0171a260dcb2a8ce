# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The ledger of an unfinished corpus: its finished shards. Writing resumes behind them.

A finished shard is one line of JSON, appended after the shard's files were renamed into place and
their bytes reached the disk. A line cut off by a crash is dropped; its shard is written again, with
the same bytes. Each line ends with the sha256 of itself and the lines before it, so a changed byte
is found before writing goes on.
"""

import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from dovetail_data._durable import sync
from dovetail_data.index import DamagedError

NAME = "ledger.jsonl"
_DIGEST = "sha256"
_logger = logging.getLogger(__name__)


@contextmanager
def open_ledger(directory: Path, *, identity: dict[str, Any]) -> Iterator["Ledger"]:
    """Opens and locks the ledger of `directory`. Its first line is the identity.

    Args:
        directory: Directory of the corpus.
        identity: Values that must not change between the runs that write one corpus.

    Raises:
        ValueError: The ledger has another identity, or the directory holds other files.
        RuntimeError: Another process is writing the corpus.
    """
    path = directory / NAME
    strangers = [] if path.exists() else sorted(entry.name for entry in directory.iterdir())
    if strangers:
        raise ValueError(
            f"a corpus must be written to an empty directory: got directory={directory} with "
            f"{strangers[:3]}. Give another one."
        )
    with open(path, "a+b") as stream:
        _lock(stream, directory)
        lines, digest = _read(stream, path)
        ledger = Ledger(stream, lines[1:], digest=digest)
        if lines:
            check_identity(lines[0], identity, directory)
        else:
            ledger.write(identity)
            sync(directory)
        yield ledger


class Ledger:
    """The lines of the finished shards, in order.

    Args:
        stream: The file.
        lines: Its lines behind the first.
        digest: Digest of all lines in the file; None for a ledger without digests.
    """

    def __init__(
        self, stream: BinaryIO, lines: list[dict[str, Any]], *, digest: str | None
    ) -> None:
        self._stream = stream
        self._digest = digest
        self.lines = lines

    def append(self, line: dict[str, Any]) -> None:
        """Records a finished shard. The line is on the disk when this returns."""
        self.write(line)
        self.lines.append(line)

    def write(self, line: dict[str, Any]) -> None:
        content, self._digest = _encoded(line, self._digest)
        self._stream.write(content)
        self._stream.flush()
        os.fsync(self._stream.fileno())


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
        raise DamagedError(
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


def check_identity(stored: dict[str, Any], expected: dict[str, Any], directory: Path) -> None:
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
