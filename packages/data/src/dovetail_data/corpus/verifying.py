# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Verification of every byte of a corpus against the digests in its index."""

import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dovetail_data import _elsewhere, damage
from dovetail_data._arguments import is_remote, require_path
from dovetail_data.corpus import index
from dovetail_data.corpus.ledger import LEDGER
from dovetail_data.corpus.mirror import fetch_index
from dovetail_data.corpus.tokenizer_files import tokenizer_names
from dovetail_data.sources._remote import Store


@dataclasses.dataclass(frozen=True, kw_only=True)
class IntegrityReport:
    """The result of a verification without a difference.

    Attributes:
        path: The corpus.
        files: Number of files whose bytes were compared.
        bytes: Sum of their sizes.
    """

    path: str
    files: int
    bytes: int

    def __str__(self) -> str:
        return f"{self.path}: {self.bytes:,} bytes in {self.files:,} files are as they were written"


@_elsewhere.verify
def verify(path: str | Path, *, add: bool = False) -> IntegrityReport:
    """Reads all files of a corpus and compares them with the digests in its index.

    `Corpus` verifies all files but the records when it opens, and each record when it is read. This
    function also covers bytes between records, which no document depends on.

    Args:
        path: The corpus, or its URL; the files at a URL are read there, whatever is cached.
        add: Add the digests to the index of an older version, after the rest is verified. A
            corpus with digests stays as it is.

    Returns:
        The numbers of files and bytes read.

    Raises:
        ValueError: There is no finished corpus.
        DamageError: Files are damaged; all are named.

    Example:

        >>> from pathlib import Path
        >>> from dovetail_data import Bytes, Text, text, write
        >>> _ = Path("a.txt").write_text("To be, or not to be: that is the question.")
        >>> _ = write(text("a.txt"), "corpus", encoder=Text(Bytes()))
        >>> verify("corpus").files
        6
    """
    if is_remote(path):
        return _verify_remote(Store(str(path)), add=add)
    directory = require_path("path", path)
    entries = index.read_index(directory)
    if errors := list(_errors(directory, entries)):
        raise damage.DamageError("\n".join(map(str, errors)))
    if index.is_older(entries):
        if add:
            others = [index.PARTS, LEDGER, *tokenizer_names(directory)]
            present = [name for name in others if (directory / name).is_file()]
            index.write_digested(directory, entries, others=present)
            entries = index.read_index(directory)
        else:
            index.warn_older(directory)
    sizes = [(directory / name).stat().st_size for name in (index.NAME, *_files(entries))]
    return IntegrityReport(path=str(path), files=len(sizes), bytes=sum(sizes))


def _verify_remote(store: Store, *, add: bool) -> IntegrityReport:
    if add:
        raise ValueError(
            f"digests must be added to a local copy: got add=True for {store.url}. Copy the corpus "
            "here, add them, and copy index.json back."
        )
    with tempfile.TemporaryDirectory() as folder:
        content = fetch_index(store, Path(folder))
        (path,) = Path(folder).iterdir()
        files = _files(index.read_index(path))
    errors = []
    for name, entry in files.items():
        place, size = f"{store.url}/{name}", store.size(name)
        if size != entry["bytes"]:
            errors.append(index.damaged(place, f"bytes={size}, {index.NAME} says {entry['bytes']}"))
        elif store.digest(name, entry["bytes"]) != entry["sha256"]:
            errors.append(index.damaged(place, f"another sha256 than {index.NAME} says"))
    if errors:
        raise damage.DamageError("\n".join(map(str, errors)))
    total = len(content) + sum(entry["bytes"] for entry in files.values())
    return IntegrityReport(path=store.url, files=1 + len(files), bytes=total)


def _files(entries: dict[str, Any]) -> dict[str, dict[str, Any]]:
    shards = [index.shard_files(entries, kind) for kind in ("records", "table")]
    return shards[0] | shards[1] | index.small_files(entries)


def _errors(directory: Path, entries: dict[str, Any]) -> Iterator[damage.DamageError]:
    for name, entry in _files(entries).items():
        try:
            index.check_file(directory, name, entry)
        except damage.DamageError as error:
            yield error
    try:
        index.read_parts(directory, entries)
    except damage.DamageError as error:
        if index.PARTS not in _files(entries):  # else reported above
            yield error
