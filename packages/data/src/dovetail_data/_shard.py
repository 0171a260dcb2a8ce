# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A shard in progress: an ArrayRecord file and the table of its documents."""

import hashlib
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter

from dovetail_data._durable import sync
from dovetail_data._extents import crc32_of, extents
from dovetail_data._workers import Encoded

# group_size:1 makes each document readable alone; ids of 2 bytes gain little from compression and
# reading them costs the trainer's CPU on every step.
_OPTIONS = "group_size:1,uncompressed"

TABLE = np.dtype(
    [
        ("begin", "<i8"),
        ("bytes", "<u4"),
        ("crc32", "<u4"),
        ("length", "<u4"),
        ("part", "<u4"),
        ("record", "<u4"),
    ]
)
"""A document in the table. begin, bytes, crc32: of its record in the file. length: number of ids.
part, record: the part of the input with the document, and its place among the records there."""


class Shard:
    """Collects chunks under temporary names. `close` makes them durable and renames them.

    A shard is NUMBER.array_record, one record per document, and NUMBER.npy, their TABLE.
    """

    def __init__(self, directory: Path, number: int) -> None:
        self._directory = directory
        self._names = {"records": f"{number:05d}.array_record", "table": f"{number:05d}.npy"}
        self._writer = ArrayRecordWriter(str(self._partial("records")), _OPTIONS)
        self._tables: list[np.ndarray] = []
        self._totals = {"documents": 0, "tokens": 0, "bytes": 0, "text_bytes": 0, "dropped": 0}
        self._corrupt: list[dict[str, str]] = []

    @property
    def bytes(self) -> int:
        return self._totals["bytes"]

    def add(self, chunk: Encoded) -> None:
        table = np.zeros(len(chunk.records), TABLE)
        table["bytes"] = [len(record) for record in chunk.records]
        table["crc32"] = [zlib.crc32(record) for record in chunk.records]
        columns = np.array(chunk.table, np.uint32).reshape(-1, 3)
        for i, name in enumerate(("length", "part", "record")):
            table[name] = columns[:, i]
        for record in chunk.records:
            self._writer.write(record)
        self._tables.append(table)
        self._totals["documents"] += len(chunk.records)
        self._totals["tokens"] += chunk.tokens
        self._totals["bytes"] += sum(map(len, chunk.records))
        self._totals["text_bytes"] += chunk.text_bytes
        self._totals["dropped"] += chunk.dropped
        self._corrupt += [{"where": where, "error": error} for where, error in chunk.corrupt]

    def close(self) -> dict[str, Any]:
        """Makes the files durable under their final names.

        Returns the shard's entry of the index.
        """
        self._writer.close()
        table = np.concatenate(self._tables)
        _locate(table, self._partial("records"))
        np.save(self._partial("table"), table)
        line: dict[str, Any] = {**self._totals, "corrupt": self._corrupt}
        for kind, name in self._names.items():
            with open(self._partial(kind), "rb") as stream:
                os.fsync(stream.fileno())
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
                line[kind] = {"file": name, "bytes": stream.tell(), "sha256": digest}
        for kind, name in self._names.items():
            self._partial(kind).replace(self._directory / name)
        sync(self._directory)
        return line

    def discard(self) -> None:
        """Deletes the files of an unfinished shard."""
        del self._writer  # closing it would write, and fail again on a full disk
        for kind in self._names:
            self._partial(kind).unlink(missing_ok=True)

    def _partial(self, kind: str) -> Path:
        return self._directory / f"partial-{self._names[kind]}"


def _locate(table: np.ndarray, path: Path) -> None:
    """Fills in `begin`, and verifies that each record lies there."""
    # Behind the documents lies ArrayRecord's own index, which is a record too.
    places = np.array(list(extents(path))[: len(table)], np.int64).reshape(-1, 2)
    file = os.open(path, os.O_RDONLY)
    try:
        wrong = len(places) != len(table) or (places[:, 1] != table["bytes"]).any()
        if not wrong:
            table["begin"] = places[:, 0]
            crcs = [crc32_of(file, begin, size) for begin, size in places.tolist()]
            wrong = (np.array(crcs, np.uint32) != table["crc32"]).any()
    finally:
        os.close(file)
    if wrong:
        raise ValueError(
            f"array-record must write each document as one chunk: got {path} with {len(places)} of "
            f"{len(table)} records where its format has them. Use array-record 0.8."
        )
