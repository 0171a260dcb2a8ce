# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Writing of a corpus to a URL, shard by shard, by way of a local directory.

A finished shard is uploaded, then the ledger, then the shard is deleted here. So each shard of the
ledger at the URL is there, and another machine can go on from it. index.json comes last: without it
a corpus is not finished. Two machines that write one corpus at a time write the same bytes.
"""

import hashlib
import shutil
from pathlib import Path
from typing import Any

from dovetail_data._durable import write_file
from dovetail_data.corpus import index
from dovetail_data.corpus.ledger import LEDGER
from dovetail_data.corpus.mirror import fetch_index
from dovetail_data.sources._remote import Store, cache_directory


class Upload:
    """A corpus at a URL that is being written.

    Args:
        url: Such as "s3://bucket/corpus".

    Attributes:
        directory: The local directory, the same in each run.
    """

    def __init__(self, url: str) -> None:
        self._store = Store(url)
        name = hashlib.sha256(self._store.url.encode()).hexdigest()[:32]
        self.directory: Path = cache_directory() / "writing" / name

    def finished(self) -> dict[str, Any] | None:
        """Returns the index at the URL, None without one."""
        if self._store.size(index.NAME) is None:
            return None
        content = fetch_index(self._store, self.directory.parent)
        directory = self.directory.parent / hashlib.sha256(content).hexdigest()[:32]
        try:
            return index.read_index(directory)
        finally:
            shutil.rmtree(directory)

    def begin(self) -> None:
        """Fetches the ledger of another machine's run, if there is none here.

        Raises:
            ValueError: The URL holds other files.
        """
        strangers = sorted(self._store.files())
        if (self.directory / LEDGER).exists():
            return
        if LEDGER in strangers:
            write_file(self.directory / LEDGER, self._store.read(LEDGER))
        elif any("." not in name or _is_other(name) for name in strangers):
            raise ValueError(
                f"a corpus must be written to an empty directory: got {self._store.url} with "
                f"{strangers[:3]}. Give another one."
            )

    def shards(self, lines: list[dict[str, Any]]) -> None:
        """Uploads the shards of these lines of the ledger that are here, and deletes them here."""
        for line in lines:
            files = [self.directory / line["shard"][kind]["file"] for kind in ("records", "table")]
            present = [path for path in files if path.exists()]
            for path in present:
                self._store.upload(path, path.name)
            if present:
                self._store.upload(self.directory / LEDGER, LEDGER)
            for path in present:
                path.unlink()

    def finish(self) -> None:
        """Uploads the other files, index.json last, and deletes the local directory."""
        small = index.small_files(index.read_index(self.directory))
        for name in [*sorted(small), index.NAME]:
            self._store.upload(self.directory / name, name)
        shutil.rmtree(self.directory)


def _is_other(name: str) -> bool:
    """Tests for a file that is no shard: a run may be killed before it uploads its first ledger."""
    return not (name.split(".")[0].isdecimal() and name.endswith((".array_record", ".npy")))
