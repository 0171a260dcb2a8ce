# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Tables, printed and as values."""

import csv
import dataclasses
import io
import json
import math

import pytest

from dovetail_profile.table import Table


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    calls: int
    time_us: float | None


ROWS = (Row("dot.1", 12_345, 9.5), Row("copy", 2, None), Row("add", 7, 1234.5))
TABLE = Table(Row, ROWS, ("A note.",))


def test_a_table_is_a_sequence_of_rows() -> None:
    assert (len(TABLE), list(TABLE), TABLE[1], TABLE[-1]) == (3, list(ROWS), ROWS[1], ROWS[2])
    assert TABLE.columns == ("name", "calls", "time_us")
    assert TABLE.column("calls") == [12_345, 2, 7]
    top = TABLE.top(2)
    assert (top.rows, top.notes, top.kind) == (ROWS[:2], ("A note.",), Row)
    assert TABLE[1:].rows == ROWS[1:]
    assert TABLE.where("time_us", None).rows == (ROWS[1],)


@pytest.mark.parametrize("ask", [lambda t: t.where("size", 1), lambda t: t.column("size")])
def test_an_unknown_column_is_refused(ask) -> None:
    with pytest.raises(KeyError, match="must be one of name, calls, time_us, got 'size'"):
        ask(TABLE)


def test_json_has_null_for_what_is_unknown_or_no_number() -> None:
    odd = Table(Row, (*ROWS, Row('"<\u2603', 0, math.nan), Row("", -1, -math.inf)))
    values = json.loads(odd.to_json(), parse_constant=pytest.fail)
    assert values[0] == {"name": "dot.1", "calls": 12345, "time_us": 9.5}
    assert [value["time_us"] for value in values] == [9.5, None, 1234.5, None, None]
    assert values[3]["name"] == '"<\u2603'
    assert json.loads(Table(Row, ()).to_json()) == []


def test_csv_reads_back() -> None:
    odd = Table(Row, (*ROWS, Row('a,"b"\nc', 0, 0.1 + 0.2)))
    header, *lines = csv.reader(io.StringIO(odd.to_csv()))
    assert header == ["name", "calls", "time_us"]
    assert lines[1] == ["copy", "2", ""]
    assert (lines[3][0], float(lines[3][2])) == ('a,"b"\nc', 0.1 + 0.2)


def test_a_printed_table_is_aligned() -> None:
    assert str(TABLE).splitlines() == [
        "name    calls  time_us",
        "dot.1  12,345    9.500",
        "copy        2        -",
        "add         7    1,234",
        "A note.",
    ]
    assert str(Table(Row, ())) == "name  calls  time_us"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.000"), (2.5e-7, "2.5e-07"), (-3.25, "-3.250"), (4.03e9, "4.03e+09"), (98.7, "99")],
)
def test_numbers_keep_their_size(value: float, text: str) -> None:
    assert str(Table(Row, (Row("a", 1, value),))).splitlines()[1].split() == ["a", "1", text]


def test_wide_cells_are_cut_and_long_tables_counted() -> None:
    name = "fusion/" + "x" * 200 + "/router.py:41"
    lines = str(Table(Row, tuple(Row(name, i, 1.0) for i in range(45)))).splitlines()
    cell = lines[1].split("  ")[0]
    assert len(cell) == 60
    assert cell.startswith("fusion/xxx")
    assert cell.endswith("xxx/router.py:41")
    assert "xxx...xxx" in cell
    assert lines[-1] == "... and 15 more"
    assert len(lines) == 1 + 30 + 1
    assert str(Table(Row, (Row("a\n b", 1, 1.0),))).splitlines()[1].startswith("a b ")


def test_html_is_escaped() -> None:
    assert "&lt;b&gt;" in Table(Row, (Row("<b>", 1, 1.0),))._repr_html_()


def test_the_last_column_is_whole_however_long() -> None:
    @dataclasses.dataclass(frozen=True)
    class Advice:
        path: str
        change: str

    text = str(Table(Advice, (Advice("p" * 100, "c" * 100),)))
    assert "c" * 100 in text
    assert "p" * 100 not in text
