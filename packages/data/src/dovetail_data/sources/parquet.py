# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rows of Parquet files, one record each."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

from dovetail_data import _elsewhere
from dovetail_data.sources import _files, _json_columns, _tables
from dovetail_data.sources.source import Corrupt, Part, Record


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """A row group of a Parquet file.

    Attributes:
        number: Its number in the file.
        row: Its first row.
        rows: Its number of rows.
        bytes: Its compressed size.
    """

    number: int
    row: int
    rows: int
    bytes: int


@_elsewhere.source
def parquet(
    paths: _files.Paths,
    *,
    columns: Sequence[str] | None = None,
    json_columns: Sequence[str] | None = None,
    pattern: str = "**/*.parquet",
) -> "ParquetFiles":
    """Reads each row of Parquet files as a record, in the order of the files' names.

    A record is {column: value}; lists and structs are Python lists and dictionaries, and JSON text
    of the type arrow.json is its value, also within those. A row is corrupt if its values
    contradict their types, such as text that is not UTF-8. One corrupt item
    stands for all unreadable rows of a row group. Page checksums are verified if the writer stored
    them; without them some damage is not detected. Needs the extra `parquet`.

    Args:
        paths: A file, a directory or a sequence of those.
        columns: Top-level columns to read. Default: all.
        json_columns: Columns of JSON text to decode, beside those whose type says so, by their
            paths, such as "tools" or "messages.tool_calls". Default: none.
        pattern: Glob for directories.

    Raises:
        ValueError: There is no file, a footer cannot be read, or a file lacks a column.
        TypeError: `columns` is a string.

    Example:

        >>> import pyarrow, pyarrow.parquet
        >>> from dovetail_data import records
        >>> pyarrow.parquet.write_table(pyarrow.table({"text": ["Hello"]}), "c.parquet")
        >>> list(records(parquet("c.parquet")))
        [{'text': 'Hello'}]
    """
    wanted = _tables.chosen(columns)
    files = _files.find(paths, pattern)
    groups = tuple(_groups(file, wanted) for file in files)
    text = _tables.chosen(json_columns, argument="json_columns") or ()
    source = ParquetFiles(files=files, columns=wanted, groups=groups, json_columns=text)
    for file in files if text else ():
        source.check(file)
    return source


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class ParquetFiles(_files.Listed):
    """Parquet files as a source, from `parquet`. A part is a row group.

    Rows are counted from 0 in each file.

    Attributes:
        files: The files.
        columns: Columns to read; None for all.
        groups: Row groups of each file.
        json_columns: Columns that were declared to be JSON text.
    """

    files: tuple[_files.File, ...]
    columns: tuple[str, ...] | None
    groups: tuple[tuple[Group, ...], ...]
    json_columns: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        text = f" json_columns={self.json_columns}" if self.json_columns else ""
        return f"parquet columns={self.columns}{text}"

    def count(self) -> int:
        """Returns the number of rows, by the footers."""
        return sum(group.rows for groups in self.groups for group in groups)

    def check(self, file: _files.File) -> None:
        """Raises ValueError unless a file has the columns of JSON text."""
        with _open(file) as stream:
            self._decoder(stream, file)

    def _decoder(self, stream: Any, file: _files.File) -> _json_columns.Decode | None:
        options: dict[str, Any] = {
            "file": file.path,
            "implied": _json_columns.logical(stream.schema),
        }
        return _json_columns.decoder(stream.schema_arrow, self.json_columns, **options)

    def parts(self) -> tuple[Part, ...]:
        return tuple(
            file.part(group.row, group.row + group.rows, size=group.bytes)
            for file, groups in zip(self.files, self.groups, strict=True)
            for group in groups
        )

    def read_unchecked(self, part: Part) -> Iterator[Record | Corrupt]:
        file, groups = self._by_path[part.path]
        number = next(group.number for group in groups if group.row == part.start)
        given = 0
        with _open(file) as stream:
            decode = self._decoder(stream, file)
            batches = stream.iter_batches(
                _tables.ROWS, row_groups=[number], columns=self._columns, use_threads=False
            )
            try:
                for batch in batches:
                    yield from _tables.records(batch, decode)
                    given += batch.num_rows
                reason = "fewer"
            except (_tables.require_pyarrow().ArrowException, OSError) as error:
                reason = str(error)
        lost = part.stop - part.start - given
        if lost:
            yield Corrupt(
                f"row group {number} must be readable: got {reason}; its last {lost} of "
                f"{part.stop - part.start} rows are lost. Fetch or write the file again."
            )

    def locate(self, part: Part, i: int) -> str:
        file, _ = self._by_path[part.path]
        return f"{file.name} row {part.start + i}"

    @property
    def _columns(self) -> list[str] | None:
        return None if self.columns is None else list(self.columns)

    @functools.cached_property
    def _by_path(self) -> dict[str, tuple[_files.File, tuple[Group, ...]]]:
        pairs = zip(self.files, self.groups, strict=True)
        return {file.path: (file, groups) for file, groups in pairs}


def _groups(file: _files.File, columns: tuple[str, ...] | None) -> tuple[Group, ...]:
    with _open(file) as stream:
        _tables.check_columns(stream.schema_arrow.names, columns, file.path)
        metadata = stream.metadata
    groups: list[Group] = []
    row = 0
    for i in range(metadata.num_row_groups):
        group = metadata.row_group(i)
        chunks = (group.column(j) for j in range(group.num_columns))
        size = sum(chunk.total_compressed_size for chunk in chunks)
        if group.num_rows:  # an empty group would share its place with the next
            groups.append(Group(number=i, row=row, rows=group.num_rows, bytes=size))
        row += group.num_rows
    return tuple(groups)


def _open(file: _files.File) -> Any:
    module = _tables.require_pyarrow("pyarrow.parquet")
    try:
        return module.ParquetFile(file.path, page_checksum_verification=True)
    except (_tables.require_pyarrow().ArrowException, OSError) as error:
        raise ValueError(
            f"a parquet file must have a footer that can be read: got {file.path}: {error}. "
            "Fetch or write the file again, or leave it out of `paths`."
        ) from error
