# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Records of ArrayRecord files."""

import dataclasses
from collections.abc import Iterator
from contextlib import closing

from array_record.python.array_record_module import ArrayRecordReader

from dovetail_data.sources import _files
from dovetail_data.sources._decoding import Decode, RecordFiles, decoded, require_decode
from dovetail_data.sources.source import Corrupt, Part, Record

_READER_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"  # else a pool of threads per file


def array_record(
    paths: _files.Paths, *, decode: Decode = "json", pattern: str = "**/*.array_record"
) -> "ArrayRecordFiles":
    """Reads the records of ArrayRecord files, in the order of the files' names.

    Each record of a damaged chunk is corrupt, and each that cannot be decoded; the others are still
    read.

    Args:
        paths: A file, a directory or a sequence of those.
        decode: "json" gives the record's JSON object, "text" {"text": str} from UTF-8, "bytes"
            {"bytes": bytes}.
        pattern: Glob for directories.

    Raises:
        ValueError: There is no file, a file is cut or no ArrayRecord, or `decode` is unknown.

    Example:

        >>> from array_record.python.array_record_module import ArrayRecordWriter
        >>> from dovetail_data import records
        >>> writer = ArrayRecordWriter("e.array_record", "group_size:1")
        >>> _ = writer.write(b'{"text": "Hello"}')
        >>> writer.close()
        >>> list(records(array_record("e.array_record")))
        [{'text': 'Hello'}]
    """
    require_decode(decode)
    files = _files.find(paths, pattern)
    counts = tuple(count_of(file) for file in files)
    return ArrayRecordFiles(files=files, counts=counts, decode=decode)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class ArrayRecordFiles(RecordFiles):
    """ArrayRecord files as a source, from `array_record`. A part is a range of records.

    Attributes:
        files: The files.
        counts: Number of records of each file.
        decode: "json", "text" or "bytes".
    """

    format = "array_record"

    def read_unchecked(self, part: Part) -> Iterator[Record | Corrupt]:
        with closing(_open(part.path)) as reader:
            for content in _contents(reader, part):
                yield content if isinstance(content, Corrupt) else self.record(content)

    def record(self, content: bytes) -> Record | Corrupt:
        """Returns the record with this content."""
        return decoded(content, self.decode)


def _open(path: str) -> ArrayRecordReader:
    """Opens a file; ValueError if its index cannot be read.

    The reader itself would report 0 records.
    """
    reader = ArrayRecordReader(path, _READER_OPTIONS)
    if reader.ok():
        return reader
    try:
        reader.close()
    except RuntimeError as error:
        raise ValueError(
            f"an ArrayRecord file must end with its index: got {path}: {error}. Fetch or write "
            "the file again, or leave it out of `paths`."
        ) from error
    raise AssertionError("a reader that is not ok says why on close")


def count_of(file: _files.File) -> int:
    """Returns the number of records; ValueError if the index of a file cannot be read."""
    with closing(_open(file.path)) as reader:
        return reader.num_records()


def _contents(reader: ArrayRecordReader, part: Part) -> Iterator[bytes | Corrupt]:
    try:
        yield from reader.read(part.start, part.stop)
    except RuntimeError:  # one damaged chunk fails them all
        for i in range(part.start, part.stop):
            yield _content(reader, i)


def _content(reader: ArrayRecordReader, i: int) -> bytes | Corrupt:
    try:
        return reader.read([i])[0]
    except RuntimeError as error:
        return Corrupt(
            f"a record must be whole: got {error}. Fetch or write the file again, or leave the "
            "record out."
        )
