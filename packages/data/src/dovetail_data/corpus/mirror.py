# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The local copy of a remote corpus: index and tables at once, shards when they are first read."""

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

from dovetail_data import damage
from dovetail_data._arguments import require_integer, require_path
from dovetail_data._durable import write_file
from dovetail_data.corpus import index
from dovetail_data.sources._remote import ATTEMPTS, Store, cache_directory


@dataclasses.dataclass(frozen=True)
class Mirror:
    """A corpus at a URL, and its local directory.

    Args:
        store: The files at the URL.
        directory: Directory for this state of the corpus, named by the digest of its index.
        cache_bytes: Most bytes of shards to keep; None for all.
    """

    store: Store
    directory: Path
    cache_bytes: int | None

    def fetch(self, name: str, entry: dict[str, Any]) -> Path:
        """Returns the path of a file, fetched and verified if it is not here."""
        path = self.directory / name
        if not path.is_file():
            self.store.download(name, path, size=entry["bytes"], sha256=entry["sha256"])
        return path

    def fetch_shard(self, name: str, entry: dict[str, Any]) -> Path:
        """Returns the path of a shard. Others, least recently fetched first, may be deleted."""
        path = self.fetch(name, entry)
        if self.cache_bytes is not None:
            shards = sorted(self.directory.glob("*.array_record"), key=_age)
            sizes = {shard: shard.stat().st_size for shard in shards}
            excess = sum(sizes.values()) - self.cache_bytes
            for shard in shards:
                if excess > 0 and shard != path:
                    shard.unlink(missing_ok=True)  # another process may have been first
                    excess -= sizes[shard]
        return path


def mirror(url: str, *, cache: str | Path | None, cache_bytes: int | None) -> Mirror:
    """Fetches the index of a remote corpus, and all its files but the shards.

    Args:
        url: Such as "s3://bucket/corpus".
        cache: Directory of local copies; None for the user's cache directory.
        cache_bytes: See `Mirror`.

    Raises:
        ValueError: There is no finished corpus.
        OSError: A file could not be fetched.
    """
    root = cache_directory() / "corpora" if cache is None else require_path("cache", cache)
    if cache_bytes is not None:
        require_integer("cache_bytes", cache_bytes, "Pass the bytes, or None.", least=1)
    store = Store(url)
    content = fetch_index(store, root)
    directory = root / hashlib.sha256(content).hexdigest()[:32]
    local = Mirror(store, directory, cache_bytes)
    entries = index.read_index(directory)
    for name, entry in (index.shard_files(entries, "table") | index.small_files(entries)).items():
        local.fetch(name, entry)
    return local


def fetch_index(store: Store, root: Path) -> bytes:
    """Writes the verified index of a remote corpus below `root`, and returns its bytes.

    Raises:
        ValueError: There is none, or it is of an older version, without digests.
        DamageError: It is damaged.
    """
    for attempt in range(ATTEMPTS):
        try:
            content = store.read(index.NAME)
        except FileNotFoundError as error:
            raise ValueError(
                f"a corpus must be finished: got {store.url} without {index.NAME}. Call write(...) "
                "with this URL; it goes on where it stopped."
            ) from error
        directory = root / hashlib.sha256(content).hexdigest()[:32]
        directory.mkdir(parents=True, exist_ok=True)
        try:
            write_file(directory / index.NAME, content)
            if index.is_older(index.read_index(directory)):
                raise ValueError(
                    f"a remote corpus must have digests of all its files: got {store.url}, of an "
                    "older version. Add them to a local copy, by verify --add, and copy it again."
                )
            return content
        except damage.DamageError:
            (directory / index.NAME).unlink()
            directory.rmdir()
            if attempt == ATTEMPTS - 1:
                raise
    raise AssertionError


def _age(path: Path) -> float:
    return path.stat().st_mtime
