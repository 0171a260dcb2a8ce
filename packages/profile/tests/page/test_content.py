# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The parts of a page: complete, without what is absent, and in strict JSON."""

import dataclasses
import json

import pytest
from page_tables import PEAKS, tables_of

from dovetail_profile.page.content import content
from dovetail_profile.table import Table


@dataclasses.dataclass(frozen=True)
class Buffer:
    buffer: str
    bytes: int
    source: str


@dataclasses.dataclass(frozen=True)
class Live:
    point: int
    live_bytes: int


@dataclasses.dataclass(frozen=True)
class Suggestion:
    share: float
    rows: str
    change: str


MEMORY = {
    "memory/jit_f": Table(Buffer, (Buffer("a", 300, "/x/y/z.py:1"), Buffer("b", 100, ""))),
    "live/jit_f": Table(Live, (Live(0, 100), Live(1, 400))),
}
ADVICE = {"suggestions": Table(Suggestion, (Suggestion(0.125, "copy.1", "Move less."),))}


def parts_of(tables, peaks=None, most=1000):
    return {part["id"]: part for part in content(tables, peaks, most=most)}


def test_parts_come_in_the_order_of_the_page_and_are_strict_json():
    made = parts_of({**MEMORY, **tables_of(20), **ADVICE}, PEAKS)
    assert list(made) == ["suggestions", "steps", "scopes", "roofline", "ops", "memory"]
    json.dumps(made, allow_nan=False)
    (views,) = (made["ops"]["views"],)
    assert [view["name"] for view in views] == ["op", "source", "scope", "category"]


@pytest.mark.parametrize("name", ["steps", "ops", "roofline"])
def test_an_absent_and_an_empty_table_have_no_part(name):
    tables = tables_of(5)
    empty = {**tables, name: dataclasses.replace(tables[name], rows=())}
    del tables[name]
    assert content(tables, most=9) == content(empty, most=9)
    assert (name in parts_of(tables)) == (name == "ops")  # its groupings are left


def test_nothing_at_all_is_no_part():
    assert content({}, most=9) == []


def test_the_bars_of_steps_are_their_times_without_causes_that_never_occur():
    tables = tables_of(3)
    rows = [dataclasses.replace(row, compile_us=0.0) for row in tables["steps"]]
    (view,) = parts_of({"steps": dataclasses.replace(tables["steps"], rows=tuple(rows))})["steps"][
        "views"
    ]
    (picture,) = view["pictures"]
    assert [s["name"] for s in picture["series"]] == [
        "compute",
        "collective",
        "input",
        "dispatch",
        "other",
        "idle",
    ]
    assert picture["x"] == [str(row.step) for row in rows]
    assert picture["series"][0]["values"] == [row.compute_us for row in rows]
    hosts = tuple(dataclasses.replace(row, host=f"h{i % 2}") for i, row in enumerate(rows))
    (view,) = parts_of({"steps": dataclasses.replace(tables["steps"], rows=hosts)})["steps"][
        "views"
    ]
    assert view["pictures"][0]["x"] == [
        [row.host for row in hosts],
        [str(row.step) for row in hosts],
    ]


def test_a_point_for_each_operation_with_a_known_intensity_and_a_roof_for_each_peak():
    tables = tables_of(60)
    (picture,) = parts_of(tables, PEAKS)["roofline"]["views"][0]["pictures"]
    known = [row for row in tables["roofline"] if row.flop_per_byte]
    assert len(picture["x"]) == len(picture["text"]) == len(known) < 60
    (line,) = picture["lines"]
    assert (line["x"][1], line["y"][1:]) == (10, [1e12, 1e12])  # 1e12 FLOP/s over 1e11 bytes/s
    assert line["y"][0] == pytest.approx(line["x"][0] * 1e11, rel=1e-4)  # both have five digits
    assert parts_of(tables)["roofline"]["views"][0]["pictures"][0]["lines"] == []


def test_memory_is_divided_by_line_and_buffer_and_drawn_over_the_program():
    (view,) = parts_of(MEMORY)["memory"]["views"]
    tree, curve = view["pictures"]
    assert dict(zip(tree["labels"], tree["values"], strict=True)) == {
        "all": 0,
        "y/z.py:1: a": 300,
        "(no source): b": 100,
    }
    assert (view["name"], curve["x"], curve["y"]) == ("jit_f", [0, 1], [100, 400])
    assert len(view["sheets"]) == 2
    constant = {**MEMORY, "live/jit_f": MEMORY["live/jit_f"].top(1)}
    (view,) = parts_of(constant)["memory"]["views"]
    assert [picture["kind"] for picture in view["pictures"]] == ["tree"]


def test_suggestions_are_sentences_with_their_rows():
    (view,) = parts_of(ADVICE)["suggestions"]["views"]
    assert view["sentences"] == [("Up to 12.5% of the wall time: Move less.", "copy.1")]
