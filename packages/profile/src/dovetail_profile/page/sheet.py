# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Tables as JSON values for a page: by column, with titles and units, and texts once."""

import math
from collections.abc import Sequence
from typing import Any

from dovetail_profile.table import Table

Sheet = dict[str, Any]  # JSON values: columns, values, texts, notes

_TEXT = 400  # characters of a cell
# Unit and factor of a column by the end of its name, the longest first.
_UNITS = (
    ("flops_per_s", "flops/s", 1.0),
    ("bytes_per_s", "bytes/s", 1.0),
    ("flops_per_byte", "flops/byte", 1.0),
    ("fraction", "share", 1.0),
    ("bytes", "bytes", 1.0),
    ("flops", "flops", 1.0),
    ("share", "share", 1.0),
    ("us", "us", 1.0),
    ("s", "us", 1e6),
)


def sheet(table: Table[Any], most: int, *, without: str = "") -> Sheet:
    """Returns a table as JSON values: its first column, then numbers, then texts.

    Args:
        table: The table. Columns without a value are left out.
        most: Rows to keep, from the first on. A note has the number of others.
        without: A column to leave out.
    """
    rows = table.rows[:most]
    texts: dict[str, int] = {}
    columns, values = [], []
    cells = {name: [getattr(row, name) for row in rows] for name in table.columns}
    first = table.columns[0]
    for name in sorted(cells, key=lambda name: name != first and 2 - _is_numeric(cells[name])):
        title, unit, factor = _described(name)
        if name == without or all(cell is None or cell == "" for cell in cells[name]):
            continue
        if _is_numeric(cells[name]):
            values.append([number(cell, factor) for cell in cells[name]])
        else:
            unit = "text"
            values.append([texts.setdefault(text(cell), len(texts)) for cell in cells[name]])
        columns.append({"title": title, "unit": unit})
    notes = [*table.notes]
    if left := len(table) - len(rows):
        notes.append(f"{left:,} more rows are left out of a page of this size: save profile.json.")
    content = {"columns": columns, "values": values, "texts": list(texts)}
    return {**content, "rows": len(rows), "notes": notes}


def number(value: float | int | None, factor: float = 1.0) -> float | int | None:
    """Returns an integer, or a number with five digits; None unless it is finite."""
    if value is None or not math.isfinite(value):
        return None
    if isinstance(value, int) and factor == 1.0:
        return value
    short = float(f"{value * factor:.5g}")
    return int(short) if short.is_integer() else short


def text(value: object) -> str:
    """Returns a value as text of a bounded length."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        value = ", ".join(map(str, value))
    short = "" if value is None else str(value)
    return short if len(short) <= _TEXT else f"{short[: _TEXT - 1]}…"


def _is_numeric(cells: Sequence[object]) -> bool:
    return all(
        cell is None or (isinstance(cell, int | float) and not isinstance(cell, bool))
        for cell in cells
    )


def _described(name: str) -> tuple[str, str, float]:
    """Returns the title, the unit and the factor of a column."""
    for end, unit, factor in _UNITS:
        if name == end or name.endswith(f"_{end}"):
            stem = name if unit in ("share", "flops/byte") else name[: -len(end)].rstrip("_")
            return (stem or end).replace("_", " "), unit, factor
    return name.replace("_", " "), "number", 1.0
