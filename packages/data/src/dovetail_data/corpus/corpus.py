# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A finished corpus: documents on disk with random access."""

from __future__ import annotations

import dataclasses
import functools
import threading
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int32

from dovetail_data._arguments import is_remote, require_integer, require_integers, require_path
from dovetail_data.corpus import index
from dovetail_data.corpus.mirror import Mirror, mirror
from dovetail_data.corpus.shard import Files, read_extent
from dovetail_data.corpus.tokenizer_files import load_tokenizer
from dovetail_data.record import Codec, field_of
from dovetail_data.tokenizing.tokenizer import Tokenizer

Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorruptDocument:
    """A damaged document of a corpus.

    Attributes:
        document: Its number in the corpus.
        shard: The file with its record.
        error: The damage, in words.
    """

    document: int
    shard: str
    error: str


class CorruptError(ValueError):
    """More documents of a corpus are damaged than allowed. `documents` lists the known ones."""

    exit_code = 3  # of the command

    def __init__(self, message: str, documents: Sequence[CorruptDocument]) -> None:
        super().__init__(message)
        self.documents = tuple(documents)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorruptRecord:
    """A damaged record of the input. `write` left it out of the corpus.

    Args:
        where: File and line of the record, or the like.
        error: The damage, in words.
    """

    where: str
    error: str


class Corpus:
    """A corpus that `write` finished: encoded documents on disk.

    Also a Grain random-access source. `len(corpus)` is the number of documents. `corpus[i]` reads
    one as a dictionary of arrays; for text, {"tokens": i32[n]} with bos and eos. Each read verifies
    the record's checksum. Opening verifies the digests of the index and of all other files but the
    records. A bit flipped on disk therefore raises an error; `verify` reads every byte.

    Args:
        directory: Directory that `write` finished, or its URL (s3://, gs://, hf:// and others of
            fsspec; needs the extra `remote`). A shard of a URL is fetched when it is first read.
        cache: Directory for the files of a URL. Default: the user's cache directory.
        cache_bytes: Most bytes of shards to keep there, at least one shard. None keeps all.

    Attributes:
        directory: The directory; of a URL, the local one with its files.
        location: The directory or the URL.
        file_bytes: Size of each file by its name.
        retries: Number of remote calls that were repeated.
        fields: Names of a document's arrays.
        lengths: Number of ids of each document, i32[documents].
        tokens: Number of ids of all documents.
        text_bytes: UTF-8 bytes of the input text, for bits per byte.
        dropped: Number of records that `write` left out because nothing in them can be trained on.
        corrupt: The records that could not be read or encoded.
        manifest: The encoder and its settings, with digests of tokenizer and template.
        vocab_size: Exclusive upper bound of the ids. None for documents without ids.
        fingerprint: Digest of the documents, their layout and the manifest.

    Raises:
        ValueError: The directory holds no finished corpus, or a file is missing, cut or damaged.

    Example:

        >>> from pathlib import Path
        >>> from dovetail_data import Bytes, Text, text, write
        >>> _ = Path("a.txt").write_text("To be, or not to be: that is the question.")
        >>> corpus = write(text("a.txt"), "corpus", encoder=Text(Bytes()))
        >>> Corpus("corpus")[0]["tokens"][:4]
        array([256,  84, 111,  32], dtype=int32)
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        cache: str | Path | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        if is_remote(directory):
            copy = mirror(str(directory), cache=cache, cache_bytes=cache_bytes)
            self._open(copy.directory, verify=True, copy=copy)
            return
        if cache is not None or cache_bytes is not None:
            raise ValueError(
                "only a corpus at a URL has a cache: got "
                f"directory={str(directory)!r}, cache={cache!r}, cache_bytes={cache_bytes}. Leave "
                "them out."
            )
        self._open(require_path("directory", directory), verify=True, copy=None)

    def _open(self, directory: Path, *, verify: bool, copy: Mirror | None) -> None:
        self.directory = directory
        self._mirror = copy
        entries = index.read_index(self.directory)
        for kind in ("records", "table") if copy is None else ("table",):
            for name, entry in index.shard_files(entries, kind).items():
                index.check_size(directory, name, entry)
        if verify:
            self._verify(entries)
        self._entries = entries
        self.fingerprint: str = entries["fingerprint"]
        self.tokens: int = entries["tokens"]
        self.text_bytes: int = entries["text_bytes"]
        self.dropped: int = entries["dropped"]
        self.manifest: dict[str, Any] = entries["manifest"]
        self.codec = Codec({name: field_of(field) for name, field in entries["layout"].items()})
        self.fields = tuple(self.codec.layout)
        sizes = [self.codec.layout[name].vocab_size or 0 for name in self.codec.ids]
        self.vocab_size: int | None = max(sizes, default=None)
        self.corrupt = tuple(
            CorruptRecord(**record) for shard in entries["shards"] for record in shard["corrupt"]
        )
        self._paths = [directory / name for name in index.shard_files(entries, "records")]
        tables = index.shard_files(entries, "table")
        self._tables = [np.load(directory / name, mmap_mode="r") for name in tables]
        self._starts = np.cumsum([0, *map(len, self._tables)])
        lengths = [table["length"].astype(np.int32) for table in self._tables]
        self.lengths: Int32[np.ndarray, "documents"] = np.concatenate(lengths)
        self._files = threading.local()  # a descriptor may be closed while another thread reads

    def _verify(self, entries: dict[str, Any]) -> None:
        """Raises DamageError for a damaged file; the records are verified as they are read."""
        if index.is_older(entries):
            index.warn_older(self.directory)
        for name, entry in (
            index.shard_files(entries, "table") | index.small_files(entries)
        ).items():
            index.check_file(self.directory, name, entry)

    @classmethod
    def _reopened(cls, directory: Path, copy: Mirror | None = None) -> "Corpus":
        """Opens the corpus in another process, without verifying again."""
        corpus = cls.__new__(cls)
        corpus._open(directory, verify=False, copy=copy)
        return corpus

    def __reduce__(self) -> tuple[Any, tuple[Path, Mirror | None]]:
        return Corpus._reopened, (self.directory, self._mirror)

    @property
    def retries(self) -> int:
        return 0 if self._mirror is None else self._mirror.store.retries

    @property
    def location(self) -> str:
        return str(self.directory) if self._mirror is None else self._mirror.store.url

    @property
    def file_bytes(self) -> dict[str, int]:
        kinds = [index.shard_files(self._entries, kind) for kind in ("records", "table")]
        listed = kinds[0] | kinds[1] | index.small_files(self._entries)
        own = (self.directory / index.NAME).stat().st_size
        return {index.NAME: own, **{name: entry["bytes"] for name, entry in listed.items()}}

    def __repr__(self) -> str:
        dropped = f", dropped={self.dropped:,}" if self.dropped else ""
        return (
            f"Corpus({self.location!r}, documents={len(self):,}, tokens={self.tokens:,}, "
            f"fields={list(self.fields)}{dropped})"
        )

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, document: int) -> Arrays:
        require_integer("document", document, "Use range(len(corpus)).")
        return self.__getitems__([document])[0]

    def __getitems__(self, documents: Sequence[int]) -> list[Arrays]:
        stored = self.read(require_integers("documents", documents))
        return [
            {name: self._public(name, array) for name, array in arrays.items()}
            for arrays in stored
            if arrays is not None
        ]

    def read(
        self, documents: np.ndarray, *, corrupt: list[CorruptDocument] | None = None
    ) -> list[Arrays | None]:
        """Reads documents as stored: read-only arrays in their smallest dtypes.

        Args:
            documents: Document numbers, i64[k], in any order.
            corrupt: Receives the damaged documents; each is None in the result. None raises
                instead.

        Returns:
            One dictionary of arrays per document, in the order of `documents`.

        Raises:
            IndexError: A number is out of range.
            CorruptError: A document is damaged and `corrupt` is None.
        """
        if not isinstance(documents, np.ndarray):
            documents = require_integers("documents", documents)
        outside = (documents < 0) | (documents >= len(self))
        if outside.any():
            raise self._outside(documents[outside][0].item())
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
        """Returns the part of the input with a document, such as "a/b.txt", and its place in it."""
        require_integer("document", document, "Use range(len(corpus)).")
        if not 0 <= document < len(self):
            raise self._outside(document)
        shard = int(np.searchsorted(self._starts, document, side="right")) - 1
        row = self._tables[shard][document - self._starts[shard]]
        return self._part_names[row["part"]], int(row["record"])

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that wrote the corpus, loaded from its directory.

        Raises:
            ValueError: It was not a tokenizer of this package, so the directory does not hold it.
        """
        stored = load_tokenizer(self.directory)
        if stored is None or stored.fingerprint != self.manifest.get("tokenizer"):
            raise ValueError(
                f"a corpus must keep its tokenizer to be read as text: got {self.directory}, "
                f"written by {self.manifest.get('tokenizer')!r}, with "
                f"{stored and stored.fingerprint!r} beside it. Decode with your own tokenizer."
            )
        return stored

    @functools.cached_property
    def _part_names(self) -> list[str]:
        last = max(table["part"].max(initial=0).item() for table in self._tables)
        return index.read_parts(self.directory, self._entries, least=last + 1)

    def _outside(self, document: int) -> IndexError:
        return IndexError(
            f"a document must be in [0, {len(self)}): got document={document}. "
            "Use range(len(corpus))."
        )

    def _public(self, name: str, array: np.ndarray) -> np.ndarray:
        return array.astype(np.int32) if name in self.codec.ids else array

    def _file(self, shard: int) -> int:
        if not hasattr(self._files, "open"):
            self._files.open = Files(self._paths, self._fetch)
        return self._files.open[shard]

    def _fetch(self, shard: int) -> None:
        """Fetches a shard of a URL."""
        if self._mirror is not None:
            self._mirror.fetch_shard(
                self._paths[shard].name, self._entries["shards"][shard]["records"]
            )

    def _damaged(
        self, document: int, shard: int, what: str, corrupt: list[CorruptDocument] | None
    ) -> None:
        damaged = CorruptDocument(document=document, shard=str(self._paths[shard]), error=what)
        if corrupt is None:
            source, record = self.source(document)
            raise CorruptError(
                f"a document must be as it was written: got document={document} (record {record} "
                f"of {source}) in {self._paths[shard]}: {what}. Copy the shard again, write the "
                "corpus again, or pass max_corrupt= to batches.",
                [damaged],
            )
        corrupt.append(damaged)
