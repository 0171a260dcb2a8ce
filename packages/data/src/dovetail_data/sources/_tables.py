# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rows of Arrow tables as records."""

from collections.abc import Iterator, Sequence
from typing import Any

from dovetail_data._arguments import require_name, require_package, wrong
from dovetail_data.sources._json_columns import Decode
from dovetail_data.sources.source import Corrupt, Record

ROWS = 1024  # rows at a time as Python objects, which take many times the memory of a table


def require_pyarrow(name: str = "pyarrow") -> Any:
    """Imports a module of pyarrow, or raises ImportError with the name of the extra."""
    what = "parquet and arrow files need"
    return require_package(name, what, package="pyarrow", extra="parquet")


def chosen(columns: Sequence[str] | None, *, argument: str = "columns") -> tuple[str, ...] | None:
    """Returns `columns` as a tuple; TypeError for a string, ValueError for an empty sequence."""
    if isinstance(columns, str):
        raise TypeError(
            f"{argument} must be a sequence of names: got {argument}={columns!r}. "
            f"Pass {argument}=[{columns!r}]."
        )
    if isinstance(columns, Sequence) and not columns:
        raise ValueError(
            f"{argument} must name at least one: got {argument}={columns!r}. Leave it out for "
            f"{'all' if argument == 'columns' else 'none'}."
        )
    if columns is None:
        return None
    if not isinstance(columns, Sequence) or isinstance(columns, bytes):
        raise wrong(argument, "a sequence of names", columns, f'Pass {argument}=["text"].')
    for name in columns:
        require_name(argument, name, "text")
    return tuple(columns)


def check_columns(names: Sequence[str], columns: tuple[str, ...] | None, file: str) -> None:
    """Raises ValueError unless a file has the wanted columns, and no name twice.

    Args:
        names: Columns of the file.
        columns: Wanted columns; None for all.
        file: Path for the message.
    """
    if len(set(names)) != len(names):
        raise ValueError(
            f"each column must have a name of its own: got {file} with {list(names)}. "
            "Write the file again with other names."
        )
    missing = [name for name in columns or () if name not in names]
    if missing:
        raise ValueError(
            f"a file must have the columns of columns=: got {file} without {missing}. "
            f"Choose from {list(names)}."
        )


def records(batch: Any, decode: Decode | None = None) -> Iterator[Record | Corrupt]:
    """Yields the rows of a RecordBatch, with `Corrupt` for values that contradict their types.

    Args:
        batch: The batch.
        decode: Decodes the columns of JSON text of a row.
    """
    for start in range(0, batch.num_rows, ROWS):
        piece = batch.slice(start, ROWS)
        try:
            rows: list[Record] | list[Record | Corrupt] = _rows(piece, decode)
        except _UNREADABLE:
            rows = [_row(piece.slice(i, 1), decode) for i in range(piece.num_rows)]
        yield from rows


# pyarrow's errors derive from ValueError, TypeError, KeyError, NotImplementedError and OSError;
# dates that Python cannot hold are an OverflowError.
_UNREADABLE = (ValueError, TypeError, KeyError, NotImplementedError, OverflowError, OSError)


def _rows(batch: Any, decode: Decode | None) -> list[Record]:
    batch.validate(full=True)  # offsets out of a damaged file would be read as addresses
    rows = batch.to_pylist()
    return rows if decode is None else [decode(row) for row in rows]


def _row(batch: Any, decode: Decode | None) -> Record | Corrupt:
    try:
        (record,) = _rows(batch, decode)
    except _UNREADABLE as error:
        return Corrupt(
            f"the values of a row must fit their types: got {error}. "
            "Write the file again without the row."
        )
    return record
