# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Tables as JSON values: titles, units, texts, and rows that are left out."""

import dataclasses
import json

import pytest

from dovetail_profile.page.sheet import number, sheet, text
from dovetail_profile.table import Table


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    where: str
    self_us: float
    compile_s: float | None
    peak_bytes: int
    achieved_flops_per_s: float
    fraction: float
    step: int
    nothing: str


def row(i):
    return Row(f"op {i}", "a" if i % 2 else "b", 1234.5678 * i, None, 10**9 + i, 1e12, 0.5, i, "")


def test_columns_have_titles_and_units_and_numbers_come_before_texts():
    made = sheet(Table(Row, (row(0), row(1)), ("A note.",)), 10)
    assert [(c["title"], c["unit"]) for c in made["columns"]] == [
        ("name", "text"),
        ("self", "us"),
        ("peak", "bytes"),
        ("achieved", "flops/s"),
        ("fraction", "share"),
        ("step", "number"),
        ("where", "text"),
    ]
    assert made["values"][1] == [0, 1234.6]
    assert made["values"][2] == [10**9, 10**9 + 1]  # an integer is exact
    assert [made["texts"][code] for code in made["values"][-1]] == ["b", "a"]
    assert made["notes"] == ["A note."]
    assert "where" not in [
        c["title"] for c in sheet(Table(Row, (row(0),)), 1, without="where")["columns"]
    ]


def test_rows_that_are_left_out_are_counted():
    made = sheet(Table(Row, tuple(map(row, range(1500)))), 100)
    assert made["rows"] == len(made["values"][0]) == 100
    assert made["notes"] == [
        "1,400 more rows are left out of a page of this size: save profile.json."
    ]


def test_seconds_become_microseconds_and_values_strict_json():
    made = sheet(
        Table(Row, (dataclasses.replace(row(1), compile_s=0.25, self_us=float("inf")),)), 1
    )
    values = {c["title"]: v for c, v in zip(made["columns"], made["values"], strict=True)}
    assert (values["compile"], values["self"]) == ([250_000], [None])
    json.dumps(made, allow_nan=False)


@pytest.mark.parametrize(
    "value, shown",
    [(True, "yes"), (None, ""), (("a", 2), "a, 2"), ("x" * 1000, "x" * 399 + "…"), ("<b>", "<b>")],
)
def test_texts_are_bounded(value, shown):
    assert text(value) == shown


def test_numbers_have_five_digits():
    assert number(123456.789) == 123460
    assert number(1.23456e-7) == 1.2346e-7
    assert number(float("nan")) is None
