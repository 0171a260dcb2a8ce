# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Encoded tasks on disk, and the two functions that workers of Ray call: `encode`, `assemble`.

The end of a shard depends on the sizes of all documents before it, so no worker knows where its own
begins. `encode` therefore writes the documents of one task to a file, and returns counts and sizes
alone. The driver adds the sizes up as one process would, and `assemble` writes each shard from the
files of its tasks.

A file begins with the sha256 of the rest. It is written under another name and renamed, without a
sync: one that a crash has torn fails its digest, and its task is encoded again.
"""

import dataclasses
import errno
import hashlib
import json
import os
import shutil
import socket
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dovetail_data.corpus.ledger import LEDGER
from dovetail_data.corpus.ledger import STAGED as NAME
from dovetail_data.corpus.shard import Encoded, Shard
from dovetail_data.damage import DamageError
from dovetail_data.writing.workers import Job, Task


class DiskError(OSError):
    """A worker could not write. The driver adds its advice for a full disk."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """The directories of a corpus that workers write.

    Args:
        directory: Directory of the corpus, the same on each host.
        staging: Directory of the staged files.
        hostname: Name of the driver's host.
    """

    directory: Path
    staging: Path
    hostname: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Staged:
    """The counts of a task whose documents are in a file.

    Args:
        name: Name of the file.
        documents: Number of documents.
        tokens: Number of ids.
        bytes: Size of the records.
        dropped: Number of dropped records.
        corrupt: (where, error) of each record that could not be read or encoded.
        damaged: Numbers of the parts with such records.
    """

    name: str
    documents: int
    tokens: int
    bytes: int
    dropped: int
    corrupt: Sequence[tuple[str, str]]
    damaged: frozenset[int]


def begin(directory: Path, identity: Mapping[str, Any]) -> Place:
    """Makes the directory of staged files, and deletes those of another source.

    Args:
        directory: Directory of the corpus.
        identity: The ledger's identity: another one names another directory.
    """
    name = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    staging = directory.absolute() / NAME / name
    staging.mkdir(parents=True, exist_ok=True)
    for other in staging.parent.iterdir():
        if other != staging:
            shutil.rmtree(other)
    return Place(directory=directory.absolute(), staging=staging, hostname=socket.gethostname())


def encode(job: Job, task: Task, *, place: Place, name: str) -> Staged:
    """Encodes a task into a file, or verifies the file of an earlier run.

    Args:
        job: Source and encoder.
        task: The task.
        place: The directories.
        name: Name of the file.
    """
    _check_shared(place)
    path = place.staging / name
    try:
        return _counts(name, read(path))
    except (FileNotFoundError, DamageError):
        pass  # not written yet, or cut short by a crash: it is written below
    try:
        encoded = job.encode(task)
    except (FileNotFoundError, ValueError) as error:
        _explain_missing(error, task, place)
        raise
    with _disk():
        _write(path, encoded)
    return _counts(name, encoded)


def assemble(names: Sequence[str], *, place: Place, number: int) -> dict[str, Any]:
    """Writes a shard from the files of its tasks, one at a time.

    Args:
        names: Names of the files, in order.
        place: The directories.
        number: Number of the shard.

    Returns:
        The shard's entry of the index.

    Raises:
        DamageError: A file is not as it was written.
    """
    _check_shared(place)
    # Names of its own: a worker whose driver was killed may still write the same shard.
    with _disk():
        shard = Shard(place.directory, number, partial=f"partial-{uuid.uuid4().hex[:8]}-")
    try:
        for name in names:
            encoded = read(place.staging / name)
            with _disk():
                shard.add(encoded)
        with _disk():
            return shard.close()
    except BaseException:
        shard.discard()
        raise


def _write(path: Path, encoded: Encoded) -> None:
    head = {
        "sizes": [len(record) for record in encoded.records],
        "table": encoded.table,
        "tokens": encoded.tokens,
        "text_bytes": encoded.text_bytes,
        "dropped": encoded.dropped,
        "corrupt": encoded.corrupt,
        "damaged": sorted(encoded.damaged),
    }
    content = [json.dumps(head).encode() + b"\n", *encoded.records]
    digest = hashlib.sha256()
    for piece in content:
        digest.update(piece)
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        with open(partial, "wb") as file:
            file.write(digest.hexdigest().encode() + b"\n")
            file.writelines(content)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def read(path: Path) -> Encoded:
    """Returns the documents of a staged file.

    Raises:
        FileNotFoundError: There is no such file.
        DamageError: The file is not as it was written.
    """
    content = path.read_bytes()
    digest, _, rest = content.partition(b"\n")
    if hashlib.sha256(rest).hexdigest().encode() != digest:
        raise DamageError(
            f"a staged file must be as it was written: got {path} with another sha256. Call "
            "write(...) again: its documents are then encoded anew."
        )
    del content
    line, _, records = rest.partition(b"\n")
    head = json.loads(line)
    out = Encoded(
        table=[(length, number, i) for length, number, i in head["table"]],
        tokens=head["tokens"],
        text_bytes=head["text_bytes"],
        dropped=head["dropped"],
        corrupt=[(where, error) for where, error in head["corrupt"]],
        damaged=set(head["damaged"]),
    )
    start = 0
    for size in head["sizes"]:
        out.records.append(records[start : start + size])
        start += size
    return out


def _counts(name: str, encoded: Encoded) -> Staged:
    return Staged(
        name=name,
        documents=encoded.documents,
        tokens=encoded.tokens,
        bytes=sum(map(len, encoded.records)),
        dropped=encoded.dropped,
        corrupt=encoded.corrupt,
        damaged=frozenset(encoded.damaged),
    )


def _check_shared(place: Place) -> None:
    """Raises ValueError on a host that does not see the corpus's directory."""
    if not (place.directory / LEDGER).exists() or not place.staging.is_dir():
        raise ValueError(
            f"each host must see the corpus's directory: got directory={place.directory}, which is "
            f"not on {socket.gethostname()} as on {place.hostname}. Give one of a file system that "
            "all hosts share."
        )


def _explain_missing(error: Exception, task: Task, place: Place) -> None:
    """Adds a note if the input is missing on this host, which is not the driver's."""
    host = socket.gethostname()
    missing = [p.input_part.path for p in task.pieces if not os.path.exists(p.input_part.path)]
    if missing and host != place.hostname:
        error.add_note(
            f"Each host must see the files of the source: got {missing[0]}, which is not on "
            f"{host}. Put it on a file system that all hosts share."
        )


@contextmanager
def _disk() -> Iterator[None]:
    """Marks the errors of a full disk. ArrayRecord reports it as a RuntimeError."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        raise DiskError(getattr(error, "errno", None) or errno.EIO, str(error)) from error
