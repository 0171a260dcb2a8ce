# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The content of a page as JSON values: parts with pictures and tables, from the tables alone."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dovetail_profile.page.sheet import number, sheet, text
from dovetail_profile.page.tree import tree
from dovetail_profile.peaks import Peaks
from dovetail_profile.table import Table

Json = dict[str, Any]
Tables = Mapping[str, Table[Any]]

_CAUSES = ("compute", "collective", "input", "compile", "dispatch", "other", "idle")
_POINTS = 1000  # of a picture

# Parts that are tables alone: their titles, and sentences above them.
_TABLES = {
    "ops": ("Operations", "Self time: without what an operation calls, on all devices."),
    "memory": ("Memory", "Buffers of a program on one device, as the compiler planned them."),
    "compiles": ("Compilations", "Tracing, lowering and compiling, and why again."),
    "collectives": ("Collectives", ""),
    "annotations": ("Annotations", "Spans that the program names."),
    "modules": ("Programs", ""),
}


def content(tables: Tables, peaks: Peaks | None = None, *, most: int) -> list[Json]:
    """Returns the parts of a page. A table that is absent or empty has none.

    Args:
        tables: By the method of `Profile` that returns them; a grouping or a program follows after
            a slash: "ops/source", "memory/jit_step". "live/jit_step" has the memory over time.
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
        sheets: list[Json] = [sheet(table, most, without=group)]
        pictures: list[Json | None] = []
        if name == "memory":
            leaves = [((_end(row.source), row.buffer), float(row.bytes), None) for row in table]
            title = "area: bytes at the peak, by line of source and buffer"
            pictures.append(tree(leaves, title=title, unit="bytes", joint=": "))
            if live := tables.get(f"live/{group}"):
                sheets.append(sheet(live, most))
                pictures.append(_curve(live))
        yield _view(group or "op", sheets, *pictures)


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
        (row.scope.split(".") if row.scope else ["(no scope)"], row.self_us, fraction)
        for row, fraction in ((row, getattr(row, "fraction", None)) for row in rows)
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
    for dtype, peak in peaks.flops_per_s.items() if peaks else ():
        rate = peaks.bytes_per_s if peaks else 0.0
        at = [min(*x, peak / rate) / 2, peak / rate, max(*x, peak / rate) * 2]
        y = [number(min(peak, intensity * rate)) for intensity in at]
        lines.append({"name": f"roof of {dtype}", "x": [number(value) for value in at], "y": y})
    return {
        "kind": "points",
        "title": f"area: self time{left}",
        "x": [number(value) for value in x],
        "y": [number(row.achieved_flops_per_s) for row in rows],
        "size": [number(row.self_us) for row in rows],
        "text": [text(row.name) for row in rows],
        "lines": lines,
    }


def _curve(table: Table[Any]) -> Json | None:
    if len(table) == 1:
        return None  # no heap: all buffers live all the time
    y = [number(value) for value in table.column("live_bytes")]
    x = table.column("point")
    return {"kind": "curve", "title": "bytes over the program", "along": "point", "x": x, "y": y}
