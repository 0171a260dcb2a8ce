# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rows of Arrow IPC files, one record each: streams, as `datasets` saves them, and files.

A stream has no footer, so `parts` walks over its messages once; their bodies stay unread.
"""

import dataclasses
import functools
import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Any

from dovetail_data import _elsewhere
from dovetail_data.sources import _files, _json_columns, _tables
from dovetail_data.sources._decoding import parts_of
from dovetail_data.sources.source import Corrupt, Part, Record

_FILE_MAGIC = b"ARROW1"
_END = b"\xff\xff\xff\xff\0\0\0\0"  # of a stream
_OLD_END = b"\0\0\0\0"  # before Arrow 0.15


@_elsewhere.source
def arrow(
    paths: _files.Paths,
    *,
    columns: Sequence[str] | None = None,
    json_columns: Sequence[str] | None = None,
    pattern: str = "**/*.arrow",
) -> "ArrowFiles":
    """Reads each row of Arrow IPC streams or files as a record, in the order of the files' names.

    A record is {column: value}; lists and structs are Python lists and dictionaries, and JSON text
    of the type arrow.json is its value, also within those. A row is corrupt if its values
    contradict their types. One corrupt item stands for each record batch that
    cannot be read, and for the rest of a stream that is damaged, cut, without its end mark or
    followed by other bytes. Arrow keeps no checksums: other damage is not detected. Needs the extra
    `parquet`.

    Args:
        paths: A file, a directory or a sequence of those.
        columns: Top-level columns to read. Default: all.
        json_columns: Columns of JSON text to decode, beside those whose type says so, by their
            paths, such as "tools" or "messages.tool_calls". Default: none.
        pattern: Glob for directories.

    Raises:
        ValueError: There is no file, a file is neither stream nor file, or lacks a column.
        TypeError: `columns` is a string.

    Example:

        >>> import pyarrow
        >>> from dovetail_data import records
        >>> table = pyarrow.table({"text": ["Hello"]})
        >>> with pyarrow.ipc.new_stream("d.arrow", table.schema) as stream:
        ...     stream.write(table)
        >>> list(records(arrow("d.arrow")))
        [{'text': 'Hello'}]
    """
    wanted = _tables.chosen(columns)
    files = _files.find(paths, pattern)
    text = _tables.chosen(json_columns, argument="json_columns") or ()
    for file in files:
        schema = _schema(file)
        _tables.check_columns(schema.names, wanted, file.path)
        _json_columns.decoder(schema, text, file=file.path)
    return ArrowFiles(files=files, columns=wanted, json_columns=text)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class ArrowFiles(_files.Listed):
    """Arrow files as a source, from `arrow`. A part is a run of record batches of one file.

    Rows are counted from 0 in each file, without those of batches that cannot be read.

    Attributes:
        files: The files.
        columns: Columns to read; None for all.
        json_columns: Columns that were declared to be JSON text.
    """

    files: tuple[_files.File, ...]
    columns: tuple[str, ...] | None
    json_columns: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        text = f" json_columns={self.json_columns}" if self.json_columns else ""
        return f"arrow columns={self.columns}{text}"

    def parts(self) -> tuple[Part, ...]:
        return self._parts

    @functools.cached_property
    def _parts(self) -> tuple[Part, ...]:
        return tuple(
            input_part
            for file in self.files
            for input_part in (_file_parts(file) if _is_file(file.path) else _stream_parts(file))
        )

    def read_unchecked(self, part: Part) -> Iterator[Record | Corrupt]:
        file = self.by_path[part.path]
        decode = _json_columns.decoder(_schema(file), self.json_columns, file=file.path)
        for batch in _batches(part):
            if isinstance(batch, Corrupt):
                yield batch
            else:
                kept = batch if self.columns is None else batch.select(list(self.columns))
                yield from _tables.records(kept, decode)

    def count(self) -> int | None:
        """Returns the number of rows, None if a batch is damaged."""
        total = 0
        for batch in itertools.chain.from_iterable(map(_batches, self._parts)):
            if isinstance(batch, Corrupt):
                return None
            total += batch.num_rows
        return total

    def locate(self, part: Part, i: int) -> str:
        before = [p for p in self._parts if p.path == part.path and p.start < part.start]
        now = os.stat(part.path).st_mtime_ns
        row = sum(_rows(p, now) for p in before) + i
        return f"{self.by_path[part.path].name} row {row}"


@functools.lru_cache(maxsize=1 << 16)
def _rows(part: Part, _mtime_ns: int) -> int:
    """Counts rows for a message. Cached, because a damaged file is asked about many times."""
    return sum(batch.num_rows for batch in _batches(part) if not isinstance(batch, Corrupt))


def _batches(part: Part) -> Iterator[Any]:
    """Yields the record batches of `part`, with `Corrupt` in the place of unreadable ones."""
    with _tables.require_pyarrow().OSFile(part.path) as stream:
        if _is_file(part.path):
            yield from _file_batches(stream, part)
        elif part.start:
            yield from _stream_batches(stream, part)
        else:
            yield from _sequential_batches(stream)


def _is_file(path: str) -> bool:
    with open(path, "rb") as stream:
        return stream.read(len(_FILE_MAGIC)) == _FILE_MAGIC


def _schema(file: _files.File) -> Any:
    pyarrow, ipc = _tables.require_pyarrow(), _tables.require_pyarrow("pyarrow.ipc")
    try:
        with pyarrow.OSFile(file.path) as stream:
            if _is_file(file.path):
                return ipc.open_file(stream).schema
            return ipc.read_schema(stream)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(
            f"an arrow file must be an IPC stream or file: got {file.path}: {error}. "
            "Fetch or write the file again, or leave it out of `paths`."
        ) from error


def _file_parts(file: _files.File) -> Iterator[Part]:
    """Cuts a file into equal runs of batches: pyarrow does not tell the place of a batch."""
    ipc = _tables.require_pyarrow("pyarrow.ipc")
    with _tables.require_pyarrow().OSFile(file.path) as stream:
        batches = ipc.open_file(stream).num_record_batches
    yield from parts_of(file, batches)


def _file_batches(stream: Any, part: Part) -> Iterator[Any]:
    reader = _tables.require_pyarrow("pyarrow.ipc").open_file(stream)
    for i in range(part.start, part.stop):
        try:
            yield reader.get_batch(i)
        except _errors() as error:
            yield _damaged_batch(error)


def _stream_parts(file: _files.File) -> Iterator[Part]:
    """Cuts a stream into runs of messages, with the end mark in the last.

    A stream with dictionaries is one part from byte 0: its batches need everything before them.
    """
    ipc = _tables.require_pyarrow("pyarrow.ipc")
    with _tables.require_pyarrow().memory_map(file.path) as stream:
        ipc.read_schema(stream)
        cuts = [stream.tell()]
        while not _end_bytes(stream) and (at := stream.tell()) < file.bytes:
            if at - cuts[-1] >= _files.PART_BYTES:
                cuts.append(at)
            try:
                message = ipc.read_message(stream)
            except _errors():
                break  # `read` comes to it in the last part
            if message.type == "dictionary":
                yield file.part(0, file.bytes, size=file.bytes)
                return
    ends = [*cuts[1:], file.bytes]
    for start, stop in zip(cuts, ends, strict=True):
        yield file.part(start, stop, size=stop - start)


def _stream_batches(stream: Any, part: Part) -> Iterator[Any]:
    ipc = _tables.require_pyarrow("pyarrow.ipc")
    schema = ipc.read_schema(stream)
    stream.seek(part.start)
    while stream.tell() < part.stop and not _end_bytes(stream):
        at = stream.tell()
        try:
            message = ipc.read_message(stream)
        except _errors() as error:
            yield _damaged_rest(f"{error} at byte {at}")
            return
        try:
            yield ipc.read_record_batch(message, schema)
        except _errors() as error:
            yield _damaged_batch(error)
    if part.stop == stream.size():
        yield from _check_end(stream)


def _sequential_batches(stream: Any) -> Iterator[Any]:
    reader = _tables.require_pyarrow("pyarrow.ipc").open_stream(stream)
    while not _end_bytes(stream) and stream.tell() < stream.size():
        try:
            yield reader.read_next_batch()
        except _errors() as error:
            yield _damaged_rest(str(error))
            return
    yield from _check_end(stream)


def _check_end(stream: Any) -> Iterator[Corrupt]:
    end = _end_bytes(stream)
    left = stream.size() - stream.tell()
    if not end:
        yield _damaged_rest("the end of the file before the stream's end mark")
    elif left > end:
        yield _damaged_rest(f"{left - end} bytes after the stream's end mark")


def _end_bytes(stream: Any) -> int:
    """Returns the size of the end mark that comes next in `stream`, 0 if none does."""
    at = stream.tell()
    head = stream.read(len(_END))
    stream.seek(at)
    return next((len(end) for end in (_END, _OLD_END) if head.startswith(end)), 0)


def _errors() -> tuple[type[Exception], ...]:
    return (_tables.require_pyarrow().ArrowException, OSError, EOFError)


def _damaged_batch(error: Exception) -> Corrupt:
    return Corrupt(
        f"a record batch must be readable: got {error}; its rows are lost. "
        "Fetch or write the file again."
    )


def _damaged_rest(reason: str) -> Corrupt:
    return Corrupt(
        f"a stream must be whole: got {reason}; what follows is lost. "
        "Fetch or write the file again."
    )
