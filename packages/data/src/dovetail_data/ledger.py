# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The ledger of an unfinished corpus: its finished shards. Writing resumes behind them.

A finished shard is one line of JSON, appended after the shard's files were renamed into place and
their bytes reached the disk. A line cut off by a crash is dropped; its shard is written again, with
the same bytes.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from dovetail_data._durable import sync

NAME = "ledger.jsonl"


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
        lines = _read(stream, path)
        ledger = Ledger(stream, lines[1:])
        if lines:
            check_identity(lines[0], identity, directory)
        else:
            ledger.write(identity)
            sync(directory)
        yield ledger


class Ledger:
    """The lines of the finished shards, in order."""

    def __init__(self, stream: BinaryIO, lines: list[dict[str, Any]]) -> None:
        self._stream = stream
        self.lines = lines

    def append(self, line: dict[str, Any]) -> None:
        """Records a finished shard. The line is on the disk when this returns."""
        self.write(line)
        self.lines.append(line)

    def write(self, line: dict[str, Any]) -> None:
        self._stream.write(json.dumps(line).encode() + b"\n")
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


def _read(stream: BinaryIO, path: Path) -> list[dict[str, Any]]:
    stream.seek(0)
    content = stream.read()
    whole = content.rfind(b"\n") + 1
    stream.truncate(whole)
    try:
        return [json.loads(line) for line in content[:whole].splitlines()]
    except ValueError as error:
        raise ValueError(
            f"a ledger must hold JSON lines: got {path}: {error}. "
            "Delete the directory and write it again."
        ) from error


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
