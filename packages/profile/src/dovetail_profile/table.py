# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Tables: rows of one dataclass, as text, JSON and CSV."""

import csv
import dataclasses
import html
import io
import json
import math
from collections.abc import Iterator
from typing import Any, Generic, TypeVar, overload

Row = TypeVar("Row")

_SHOWN = 30  # rows in a printed table
_WIDE = 60  # characters in a printed cell


@dataclasses.dataclass(frozen=True, repr=False)
class Table(Generic[Row]):
    """Rows of one kind.

    Attributes:
        kind: The dataclass of the rows. Its fields are the columns; their names have the units.
        rows: The rows.
        notes: Limits of the numbers, in sentences.
    """

    kind: type[Row]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(f.name for f in dataclasses.fields(self.kind))  # pyright: ignore[reportArgumentType] -- a dataclass

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, i: int) -> Row: ...
    @overload
    def __getitem__(self, i: slice) -> "Table[Row]": ...
    def __getitem__(self, i: Any) -> Any:
        rows = self.rows[i]
        return dataclasses.replace(self, rows=rows) if isinstance(i, slice) else rows

    def top(self, n: int) -> "Table[Row]":
        """Returns the first `n` rows."""
        return self[:n]

    def where(self, column: str, value: Any) -> "Table[Row]":
        """Returns the rows with a value in a column. KeyError for another column."""
        pairs = zip(self.rows, self.column(column), strict=True)
        return dataclasses.replace(self, rows=tuple(row for row, x in pairs if x == value))

    def column(self, name: str) -> list[Any]:
        """Returns the values of a column. KeyError for another column."""
        if name not in self.columns:
            raise KeyError(f"a column must be one of {', '.join(self.columns)}, got {name!r}")
        return [getattr(row, name) for row in self.rows]

    def to_json(self) -> str:
        """Returns a JSON array with an object for each row. None, NaN and infinity are null."""
        rows = [{name: _finite(getattr(row, name)) for name in self.columns} for row in self.rows]
        return json.dumps(rows, allow_nan=False)

    def to_csv(self) -> str:
        """Returns the rows as CSV, after a line with the names of the columns."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(zip(*map(self.column, self.columns), strict=True))
        return text.getvalue()

    def __repr__(self) -> str:
        """The first rows as aligned text, and the notes."""
        columns = []
        for name in self.columns:
            values = self.column(name)
            last = name == self.columns[-1]  # nothing stands to its right, so its text is whole
            cells = [name, *(_cell(value, whole=last) for value in values[:_SHOWN])]
            width = max(map(len, cells))
            numeric = all(isinstance(value, int | float | None) for value in values)
            columns.append([x.rjust(width) if numeric else x.ljust(width) for x in cells])
        lines = ["  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]
        if len(self.rows) > _SHOWN:
            lines.append(f"... and {len(self.rows) - _SHOWN} more")
        return "\n".join([*lines, *self.notes])

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _cell(value: Any, *, whole: bool) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    text = " ".join(str(value).split())
    if whole or len(text) <= _WIDE:
        return text
    kept = _WIDE - 3  # of a path the end tells most, of a name the start
    return f"{text[: kept // 2]}...{text[-(kept - kept // 2) :]}"


def _number(value: float) -> str:
    size = abs(value)
    if size >= 1e9 or 0 < size < 5e-4:
        return f"{value:.3g}"
    return f"{value:,.3f}" if size < 10 else f"{value:,.0f}"
