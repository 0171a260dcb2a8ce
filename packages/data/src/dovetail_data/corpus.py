# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A finished corpus: documents of ids on disk, by number, in any order."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from array_record.python.array_record_module import ArrayRecordReader
from jaxtyping import Int32

from dovetail_data import index
from dovetail_data.record import Raw

# Random access: nothing read ahead, no threads (16 of them cost 3.7 times the CPU of none), and a
# buffer no larger than a short document, for what it holds beyond that is thrown away.
_READER_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"
_BUFFER_BYTES = 4096


class Corpus:
    """The corpus that `write` finished in `directory`; a random-access source for Grain too.

    corpus[i] is {"tokens": i32[n]}, bos and eos included. A bit flipped on disk raises when its
    record is read (ArrayRecord keeps checksums); a file cut short raises here.

    lengths: i32[documents], ids of each document. tokens, documents: totals. text_bytes: UTF-8
    bytes of the input, for bits per byte. dropped: documents without text. vocab_size,
    tokenizer_fingerprint: of the tokenizer that wrote it. fingerprint: equal for equal content.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        found = index.read_index(self.directory)
        self.fingerprint: str = found["fingerprint"]
        self.tokens: int = found["tokens"]
        self.text_bytes: int = found["text_bytes"]
        self.dropped: int = found["dropped"]
        self.vocab_size: int = found["vocab_size"]
        self.tokenizer_fingerprint: str = found["tokenizer"]
        self.codec = Raw(field=found["codec"]["field"], dtype=found["codec"]["dtype"])
        self._files = [self._whole_file(shard["records"]) for shard in found["shards"]]
        tables = [np.load(self._whole_file(shard["table"])) for shard in found["shards"]]
        self._starts = np.cumsum([0, *map(len, tables)])
        table = np.concatenate(tables)
        self.lengths: Int32[np.ndarray, "documents"] = np.ascontiguousarray(table[:, 0])
        self._parts = table[:, 1]
        self._part_names: list[str] | None = None
        self._readers: dict[int, ArrayRecordReader] = {}

    def __reduce__(self) -> tuple[type["Corpus"], tuple[Path]]:
        return Corpus, (self.directory,)  # open files do not pickle

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, document: int) -> dict[str, Int32[np.ndarray, "n"]]:
        return self.__getitems__([document])[0]

    def __getitems__(self, documents: Sequence[int]) -> list[dict[str, Int32[np.ndarray, "n"]]]:
        ids = self.read(np.asarray(documents, np.int64))
        return [{self.codec.field: array.astype(np.int32)} for array in ids]

    def read(self, documents: np.ndarray) -> list[np.ndarray]:
        """The ids of `documents` i64[k] as stored: read-only views, one batched read per shard."""
        outside = (documents < 0) | (documents >= len(self))
        if outside.any():
            raise IndexError(
                f"a document must be in [0, {len(self)}): got document={documents[outside][0]}. "
                "Use range(len(corpus))."
            )
        out: list[np.ndarray] = [np.empty(0)] * len(documents)
        shards = np.searchsorted(self._starts, documents, side="right") - 1
        for shard in np.unique(shards).tolist():
            places = np.flatnonzero(shards == shard)
            records = self._reader(shard).read((documents[places] - self._starts[shard]).tolist())
            for place, record in zip(places.tolist(), records, strict=True):
                out[place] = self.codec.view(record)
        return out

    def source(self, document: int) -> str:
        """The name of the part of the input that holds a document, such as "a/b.txt"."""
        if self._part_names is None:
            content = (self.directory / index.PARTS).read_text(encoding="utf-8")
            self._part_names = json.loads(content)
        assert self._part_names is not None
        return self._part_names[self._parts[document]]

    def _reader(self, shard: int) -> ArrayRecordReader:
        if shard not in self._readers:
            self._readers[shard] = ArrayRecordReader(
                str(self._files[shard]), _READER_OPTIONS, file_reader_buffer_size=_BUFFER_BYTES
            )
        return self._readers[shard]

    def _whole_file(self, entry: dict[str, str | int]) -> Path:
        path = self.directory / str(entry["file"])
        size = path.stat().st_size if path.exists() else None
        if size != entry["bytes"]:
            raise ValueError(
                f"a corpus's files must be whole: got {path} with bytes={size}, index.json says "
                f"{entry['bytes']}. Copy the directory again, or delete it and write it anew."
            )
        return path
