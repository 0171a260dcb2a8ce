# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The content of a page as JSON values: parts with pictures and tables."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from dovetail_profile.page.sheet import number, sheet, text
from dovetail_profile.page.tree import tree
from dovetail_profile.peaks import Peaks
from dovetail_profile.table import Table

Json = dict[str, Any]
Tables = Mapping[str, Table[Any]]

_CAUSES = ("compute", "collective", "input", "compile", "dispatch", "other", "idle")
_POINTS = 1000  # of a picture

# Parts of tables: their titles, and sentences above them.
_TABLES = {
    "ops": ("Operations", "Self time: without what an operation calls, on all devices."),
    "memory": ("Memory", "Buffers of a program on one device, as the compiler planned them."),
    "compiles": ("Compilations", "Tracing, lowering and compiling, and why again."),
    "collectives": ("Collectives", ""),
    "annotations": ("Annotations", "Spans that the program names."),
    "modules": ("Programs", ""),
}


def content(tables: Tables, peaks: Peaks | None = None, *, most: int) -> list[Json]:
    """Returns the parts of a page. An absent or empty table has none.

    Args:
        tables: By method of `Profile`, with a grouping or a program after a slash: "ops/source",
            "memory/jit_step". "live/jit_step" has the memory over time.
        peaks: Limits of the device.
        most: Rows of a table.
    """
    tables = {name: table for name, table in tables.items() if len(table)}
    parts = [
        _part("suggestions", "Suggestions", _suggestions(tables, most)),
        _part("steps", "Steps", _steps(tables, most), "Each moment of a step, by its cause."),
        _part("scopes", "Module paths", _scopes(tables, most), "Self time of operations by scope."),
        _part("roofline", "Roofline", _rooflines(tables, peaks, most)),
        *(
            _part(name, title, _views(tables, name, most), intro)
            for name, (title, intro) in _TABLES.items()
        ),
    ]
    return [section for section in parts if section["views"]]


def _part(name: str, title: str, views: Iterator[Json], intro: str = "") -> Json:
    return {"id": name, "title": title, "intro": intro, "views": list(views)}


def _view(
    name: str, sheets: Sequence[Json], *pictures: Json | None, sentences: Sequence[Any] = ()
) -> Json:
    known = [picture for picture in pictures if picture]
    return {"name": name, "pictures": known, "sentences": sentences, "sheets": sheets}


def _views(tables: Tables, name: str, most: int) -> Iterator[Json]:
    """Yields a view for each table of a name."""
    for key, table in tables.items():
        first, _, group = key.partition("/")
        if first != name:
            continue
        if name == "memory":
            yield _memory(group, table, tables.get(f"live/{group}"), most)
        else:
            yield _view(group or "op", [sheet(table, most, without=group)])


def _memory(program: str, table: Table[Any], live: Table[Any] | None, most: int) -> Json:
    leaves = [((_end(row.source), row.buffer), float(row.bytes), None) for row in table]
    title = "area: bytes at the peak, by line of source and buffer"
    sheets, curve = [sheet(table, most)], None
    if live:
        sheets.append(sheet(live, most))
        if len(live) > 1:  # else there is no heap: all buffers live all the time
            curve = {
                "kind": "curve",
                "title": "bytes over the program",
                "along": "point",
                "x": live.column("point"),
                "y": _numbers(live.column("live_bytes")),
            }
    return _view(program, sheets, tree(leaves, title=title, unit="bytes", joint=": "), curve)


def _end(source: str) -> str:
    """Returns the file and its folder of a line of source."""
    return "/".join(source.split("/")[-2:]) or "(no source)"


def _suggestions(tables: Tables, most: int) -> Iterator[Json]:
    if table := tables.get("suggestions"):
        sentences = [
            (f"Up to {row.share:.1%} of the wall time: {text(row.change)}", text(row.rows))
            for row in table
        ]
        yield _view("", [sheet(table, most)], sentences=sentences)


def _steps(tables: Tables, most: int) -> Iterator[Json]:
    if table := tables.get("steps"):
        rows = table.rows[:most]
        x: list[Any] = [str(row.step) for row in rows]
        if len(set(table.column("host"))) > 1:
            x = [[text(row.host) for row in rows], x]
        times = {name: [getattr(row, f"{name}_us") for row in rows] for name in _CAUSES}
        series = [
            {"name": name, "values": [number(value) or 0 for value in values]}
            for name, values in times.items()
            if any(values)
        ]
        bars = {"kind": "bars", "title": "wall time of each step", "x": x, "series": series}
        yield _view("", [sheet(table, most)], bars if series else None)


def _scopes(tables: Tables, most: int) -> Iterator[Json]:
    rows = tables.get("roofline") or tables.get("ops") or ()
    if not any(row.scope for row in rows):
        return
    leaves = [
        ((row.scope or "(no scope)").split("."), row.self_us, getattr(row, "fraction", None))
        for row in rows
    ]
    table = tables.get("ops/scope")
    picture = tree(leaves, title="area: self time", unit="us")
    yield _view("", [sheet(table, most, without="scope")] if table else [], picture)


def _rooflines(tables: Tables, peaks: Peaks | None, most: int) -> Iterator[Json]:
    for key, name in (("roofline", "operation"), ("roofline/scope", "module path")):
        if table := tables.get(key):
            yield _view(name, [sheet(table, most)], _points(table, peaks))


def _points(table: Table[Any], peaks: Peaks | None) -> Json | None:
    rows = [r for r in table if r.flop_per_byte and r.achieved_flops_per_s]
    if not rows:
        return None
    left = f" of the {_POINTS:,} with the most" if len(rows) > _POINTS else ""
    rows = rows[:_POINTS]
    x, lines = [row.flop_per_byte for row in rows], []
    if peaks:
        for dtype, peak in peaks.flops_per_s.items():
            ridge = peak / peaks.bytes_per_s
            at = [min(*x, ridge) / 2, ridge, max(*x, ridge) * 2]
            y = [min(peak, intensity * peaks.bytes_per_s) for intensity in at]
            lines.append({"name": f"roof of {dtype}", "x": _numbers(at), "y": _numbers(y)})
    return {
        "kind": "points",
        "title": f"area: self time{left}",
        "x": _numbers(x),
        "y": _numbers(row.achieved_flops_per_s for row in rows),
        "size": _numbers(row.self_us for row in rows),
        "text": [text(row.name) for row in rows],
        "lines": lines,
    }


def _numbers(values: Iterable[float | int | None]) -> list[float | int | None]:
    return [number(value) for value in values]
