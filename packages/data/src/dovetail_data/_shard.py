# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""One shard on its way to the disk: an ArrayRecord file and the table of its documents."""

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter

from dovetail_data._workers import Encoded
from dovetail_data.ledger import sync_directory

# group_size:1 makes each document readable alone; ids of 2 bytes gain little from compression and
# reading them costs the trainer's CPU on every step.
_OPTIONS = "group_size:1,uncompressed"


class Shard:
    """Collects chunks under temporary names; `close` makes them durable, then gives them names.

    A directory holds NUMBER.array_record, one record per document, and NUMBER.npy,
    i32[documents, 2]: (tokens, part) of each document.
    """

    def __init__(self, directory: Path, number: int) -> None:
        self._directory = directory
        self._names = {"records": f"{number:05d}.array_record", "table": f"{number:05d}.npy"}
        self._writer = ArrayRecordWriter(str(self._partial("records")), _OPTIONS)
        self._tables: list[np.ndarray] = []
        self._totals = {"documents": 0, "tokens": 0, "bytes": 0, "text_bytes": 0, "dropped": 0}

    @property
    def bytes(self) -> int:
        return self._totals["bytes"]

    def add(self, chunk: Encoded) -> None:
        for record in chunk.records:
            self._writer.write(record)
        self._tables.append(chunk.table)
        self._totals["documents"] += len(chunk.records)
        self._totals["tokens"] += chunk.tokens
        self._totals["bytes"] += sum(map(len, chunk.records))
        self._totals["text_bytes"] += chunk.text_bytes
        self._totals["dropped"] += chunk.dropped

    def close(self) -> dict[str, Any]:
        """Durable under the final names when this returns the shard's line of the index."""
        self._writer.close()
        np.save(self._partial("table"), np.concatenate(self._tables))
        line: dict[str, Any] = dict(self._totals)
        for kind, name in self._names.items():
            with open(self._partial(kind), "rb") as stream:
                os.fsync(stream.fileno())
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
                line[kind] = {"file": name, "bytes": stream.tell(), "sha256": digest}
        for kind, name in self._names.items():
            self._partial(kind).replace(self._directory / name)
        sync_directory(self._directory)
        return line

    def discard(self) -> None:
        """Gives the disk back what an unfinished shard took."""
        del self._writer  # closing it would write, and fail again on a full disk
        for kind in self._names:
            self._partial(kind).unlink(missing_ok=True)

    def _partial(self, kind: str) -> Path:
        return self._directory / f"partial-{self._names[kind]}"
