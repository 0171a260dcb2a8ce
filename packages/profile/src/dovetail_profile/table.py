# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A table: rows of one dataclass, printed for a person, and given as values to a program."""

import csv
import dataclasses
import html
import io
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar, overload

Row = TypeVar("Row")

_SHOWN = 30  # rows in a printed table
_WIDE = 60  # characters in a printed cell


@dataclasses.dataclass(frozen=True, repr=False)
class Table(Generic[Row]):
    """Rows of one kind, in the order that answers the question.

    Attributes:
        kind: The frozen dataclass of the rows. Names of its fields are the columns, with units.
        rows: The rows.
        notes: Sentences that the reader of the numbers has to know.
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
        self._check(column)
        rows = tuple(row for row in self.rows if getattr(row, column) == value)
        return dataclasses.replace(self, rows=rows)

    def column(self, name: str) -> list[Any]:
        """Returns the values of a column. KeyError for another column."""
        self._check(name)
        return [getattr(row, name) for row in self.rows]

    def _check(self, column: str) -> None:
        if column not in self.columns:
            raise KeyError(f"a column must be one of {', '.join(self.columns)}, got {column!r}")

    def to_json(self) -> str:
        """Returns a JSON array of objects, one for each row.

        What is unknown is null, and so is what JSON has no number for (NaN, infinity).
        """
        rows = [{name: _finite(getattr(row, name)) for name in self.columns} for row in self.rows]
        return json.dumps(rows, allow_nan=False)

    def to_csv(self) -> str:
        """Returns lines of values separated by commas, the first with the names of the columns."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows([getattr(row, name) for name in self.columns] for row in self.rows)
        return text.getvalue()

    def __repr__(self) -> str:
        """The first rows as text, which a console shows."""
        shown = self.rows[:_SHOWN]
        cells = [[_cell(getattr(row, name)) for name in self.columns] for row in shown]
        numeric = [_is_numeric(self.rows, name) for name in self.columns]
        lines = _aligned([list(self.columns), *cells], numeric)
        if len(self.rows) > _SHOWN:
            lines.append(f"... and {len(self.rows) - _SHOWN} more")
        return "\n".join([*lines, *self.notes])

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def _is_numeric(rows: Sequence[Any], name: str) -> bool:
    return all(isinstance(getattr(row, name), int | float | None) for row in rows)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    text = " ".join(str(value).split())
    if len(text) <= _WIDE:
        return text
    kept = _WIDE - 3  # of a path the end tells most, of a name the start
    return f"{text[: kept // 2]}...{text[-(kept - kept // 2) :]}"


def _number(value: float) -> str:
    size = abs(value)
    if size >= 1e9 or 0 < size < 5e-4:
        return f"{value:.3g}"
    return f"{value:,.3f}" if size < 10 else f"{value:,.0f}"


def _aligned(cells: list[list[str]], numeric: list[bool]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in cells
    ]
