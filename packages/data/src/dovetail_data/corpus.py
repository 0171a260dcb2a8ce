# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A finished corpus: documents on disk, by number, in any order."""

import dataclasses
import functools
import hashlib
import json
import threading
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int32

from dovetail_data import index
from dovetail_data._extents import Files, read_extent
from dovetail_data.record import Codec, Field
from dovetail_data.tokenizer import Tokenizer
from dovetail_data.tokenizer_files import load_tokenizer

Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorruptDocument:
    """A document whose record is damaged. shard: the file that holds it; error: what is wrong."""

    document: int
    shard: str
    error: str


class CorruptError(ValueError):
    """More documents of a corpus are damaged than may be. documents: those found so far."""

    exit_code = 3  # of the command

    def __init__(self, message: str, documents: Sequence[CorruptDocument]) -> None:
        super().__init__(message)
        self.documents = tuple(documents)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorruptRecord:
    """A record of the input that `write` left out. where: file and line, or the like."""

    where: str
    error: str


class Corpus:
    """The corpus that `write` finished in `directory`; a random-access source for Grain too.

    corpus[i] is a dict of arrays, for text {"tokens": i32[n]}, bos and eos included. Every record
    is checked when it is read, the tables of them when the corpus is opened: a bit flipped on disk
    raises.

    fields: names of a document's arrays. lengths: i32[documents], ids of each document. tokens,
    documents: totals. text_bytes: UTF-8 bytes of the input, for bits per byte. dropped: records
    without content. corrupt: those that could not be read. manifest: what made the documents:
    encoder, tokenizer, template, by digest. vocab_size: ids lie below it; None without ids.
    fingerprint: equal for equal documents that were made in the same way.
    """

    def __init__(self, directory: str | Path) -> None:
        self._open(Path(directory), verify=True)

    def _open(self, directory: Path, *, verify: bool) -> None:
        self.directory = directory
        found = index.read_index(self.directory)
        self.fingerprint: str = found["fingerprint"]
        self.tokens: int = found["tokens"]
        self.text_bytes: int = found["text_bytes"]
        self.dropped: int = found["dropped"]
        self.manifest: dict[str, Any] = found["manifest"]
        self.codec = Codec({name: Field(**field) for name, field in found["layout"].items()})
        self.fields = tuple(self.codec.layout)
        sizes = [self.codec.layout[name].vocab_size or 0 for name in self.codec.ids]
        self.vocab_size: int | None = max(sizes, default=None)
        self.corrupt = tuple(
            CorruptRecord(**one) for shard in found["shards"] for one in shard["corrupt"]
        )
        self._paths = [self._whole_file(shard["records"]) for shard in found["shards"]]
        self._tables = [self._table(shard["table"], verify) for shard in found["shards"]]
        self._starts = np.cumsum([0, *map(len, self._tables)])
        lengths = [table["length"].astype(np.int32) for table in self._tables]
        self.lengths: Int32[np.ndarray, "documents"] = np.concatenate(lengths)
        self._files = threading.local()  # a descriptor may be closed while another thread reads

    @classmethod
    def _reopened(cls, directory: Path) -> "Corpus":
        """In another process: what this one has verified is not verified again."""
        corpus = cls.__new__(cls)
        corpus._open(directory, verify=False)
        return corpus

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        return Corpus._reopened, (self.directory,)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, document: int) -> Arrays:
        return self.__getitems__([document])[0]

    def __getitems__(self, documents: Sequence[int]) -> list[Arrays]:
        read = self.read(np.asarray(documents, np.int64))
        return [
            {name: self._public(name, array) for name, array in arrays.items()}
            for arrays in read
            if arrays is not None
        ]

    def read(
        self, documents: np.ndarray, *, corrupt: list[CorruptDocument] | None = None
    ) -> list[Arrays | None]:
        """The documents i64[k] as stored: read-only arrays in their smallest types.

        What cannot be read is None and appended to `corrupt`; CorruptError where that is None.
        """
        outside = (documents < 0) | (documents >= len(self))
        if outside.any():
            raise IndexError(
                f"a document must be in [0, {len(self)}): got document={documents[outside][0]}. "
                "Use range(len(corpus))."
            )
        out: list[Arrays | None] = [None] * len(documents)
        shards = np.searchsorted(self._starts, documents, side="right") - 1
        for shard in sorted(set(shards.tolist())):
            places = np.flatnonzero(shards == shard)
            rows = self._tables[shard][documents[places] - self._starts[shard]]
            file = self._file(shard)
            columns = (rows["begin"].tolist(), rows["bytes"].tolist(), rows["crc32"].tolist())
            for place, begin, size, crc32 in zip(places.tolist(), *columns, strict=True):
                try:
                    record = read_extent(file, begin, size)
                except OSError as error:
                    self._damaged(int(documents[place]), shard, str(error), corrupt)
                    continue
                if zlib.crc32(record) != crc32:
                    what = f"its {len(record)} of {size} bytes do not have their checksum"
                    self._damaged(int(documents[place]), shard, what, corrupt)
                    continue
                out[place] = self.codec.view(record)
        return out

    def source(self, document: int) -> tuple[str, int]:
        """The part of the input that holds a document, such as "a/b.txt", and its place there."""
        shard = int(np.searchsorted(self._starts, document, side="right")) - 1
        row = self._tables[shard][document - self._starts[shard]]
        return self._part_names[row["part"]], int(row["record"])

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that wrote it, from its directory; ValueError if it was not one of ours."""
        found = load_tokenizer(self.directory)
        if found is None or found.fingerprint != self.manifest.get("tokenizer"):
            raise ValueError(
                f"a corpus must keep its tokenizer to be read as text: got {self.directory}, "
                f"written by {self.manifest.get('tokenizer')!r}, with "
                f"{found and found.fingerprint!r} beside it. Decode with your own tokenizer."
            )
        return found

    @functools.cached_property
    def _part_names(self) -> list[str]:
        return json.loads((self.directory / index.PARTS).read_text(encoding="utf-8"))

    def _public(self, name: str, array: np.ndarray) -> np.ndarray:
        return array.astype(np.int32) if name in self.codec.ids else array

    def _file(self, shard: int) -> int:
        if not hasattr(self._files, "open"):
            self._files.open = Files(self._paths)
        return self._files.open[shard]

    def _damaged(
        self, document: int, shard: int, what: str, corrupt: list[CorruptDocument] | None
    ) -> None:
        found = CorruptDocument(document=document, shard=str(self._paths[shard]), error=what)
        if corrupt is None:
            part, record = self.source(document)
            raise CorruptError(
                f"a document must be as it was written: got document={document} (record {record} "
                f"of {part}) in {self._paths[shard]}: {what}. Copy the shard again, write the "
                "corpus again, or pass max_corrupt= to batches.",
                [found],
            )
        corrupt.append(found)

    def _whole_file(self, entry: dict[str, str | int]) -> Path:
        path = self.directory / str(entry["file"])
        size = path.stat().st_size if path.exists() else None
        if size != entry["bytes"]:
            raise ValueError(
                f"a corpus's files must be whole: got {path} with bytes={size}, index.json says "
                f"{entry['bytes']}. Copy the directory again, or delete it and write it anew."
            )
        return path

    def _table(self, entry: dict[str, str | int], verify: bool) -> np.ndarray:
        path = self._whole_file(entry)
        if verify:
            with open(path, "rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            if digest != entry["sha256"]:
                raise ValueError(
                    f"a corpus's tables must be as they were written: got {path} with another "
                    "sha256. Copy the directory again, or delete it and write it anew."
                )
        return np.load(path, mmap_mode="r")
