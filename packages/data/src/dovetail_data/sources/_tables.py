# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rows of Arrow tables as records."""

import importlib
from collections.abc import Iterator, Sequence
from typing import Any

from dovetail_data.sources.source import Corrupt, Record

ROWS = 1024  # at a time as Python objects, which take many times the memory of a table


def require_pyarrow(name: str = "pyarrow") -> Any:
    """The module `name` of pyarrow."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            "parquet and arrow files need the package pyarrow, which is not installed: "
            "pip install 'dovetail-data[parquet]'"
        ) from error


def chosen(columns: Sequence[str] | None) -> tuple[str, ...] | None:
    """`columns` as a tuple; TypeError for a string, ValueError for none at all."""
    if isinstance(columns, str):
        raise TypeError(
            f"columns must be a sequence of names: got columns={columns!r}. "
            f"Pass columns=[{columns!r}]."
        )
    if columns is not None and not columns:
        raise ValueError(
            f"columns must name at least one: got columns={columns!r}. Leave it out for all."
        )
    return None if columns is None else tuple(columns)


def check_columns(names: Sequence[str], columns: tuple[str, ...] | None, file: str) -> None:
    """ValueError unless a file has the columns that are wanted, and each of its own once."""
    if len(set(names)) != len(names):
        raise ValueError(
            f"each column must have a name of its own: got {file} with {list(names)}. "
            "Write the file again with other names."
        )
    missing = [name for name in columns or () if name not in names]
    if missing:
        raise ValueError(
            f"a file must have the columns that are wanted: got {file} without {missing}. "
            f"Choose from {list(names)}."
        )


def records(batch: Any) -> Iterator[Record | Corrupt]:
    """The rows of a RecordBatch; Corrupt for one whose values are not what their types say."""
    for start in range(0, batch.num_rows, ROWS):
        piece = batch.slice(start, ROWS)
        try:
            rows: list[Record] | list[Record | Corrupt] = _rows(piece)
        except _UNREADABLE:
            rows = [_row(piece.slice(i, 1)) for i in range(piece.num_rows)]
        yield from rows


# pyarrow's errors derive from ValueError, TypeError, KeyError, NotImplementedError and OSError;
# dates that Python cannot hold are an OverflowError.
_UNREADABLE = (ValueError, TypeError, KeyError, NotImplementedError, OverflowError, OSError)


def _rows(batch: Any) -> list[Record]:
    batch.validate(full=True)  # offsets out of a damaged file would be read as addresses
    return batch.to_pylist()


def _row(batch: Any) -> Record | Corrupt:
    try:
        (record,) = _rows(batch)
    except _UNREADABLE as error:
        return Corrupt(
            f"the values of a row must be what their types say: got {error}. "
            "Write the file again without the row."
        )
    return record
