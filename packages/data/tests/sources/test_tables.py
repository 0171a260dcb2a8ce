# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import datetime
import re
import sys

import pyarrow as pa
import pytest

from dovetail_data.sources import _tables
from dovetail_data.sources.source import Corrupt


def broken_text(values):
    """A string column whose bytes are those of `values`, UTF-8 or not."""
    return pa.array(values, pa.binary()).view(pa.string())


def test_rows_with_nested_values():
    rows = [
        {
            "n": i,
            "messages": [{"role": "user", "content": f"{j}"} for j in range(i % 3)],
            "b": b"\xff",
        }
        for i in range(2500)
    ]
    batch = pa.RecordBatch.from_pylist(rows)
    assert list(_tables.records(batch)) == rows
    assert list(_tables.records(batch.slice(1030, 7))) == rows[1030:1037]
    assert list(_tables.records(batch.slice(0, 0))) == []


def test_a_row_that_is_not_utf8_is_corrupt_alone():
    values = [b"text %d" % i for i in range(3000)]
    values[5] = values[1500] = b"caf\xe9"
    batch = pa.RecordBatch.from_arrays([broken_text(values), pa.array(range(3000))], ["s", "n"])
    rows = list(_tables.records(batch))
    assert [i for i, item in enumerate(rows) if isinstance(item, Corrupt)] == [5, 1500]
    assert rows[6] == {"s": "text 6", "n": 6}
    assert rows[2999] == {"s": "text 2999", "n": 2999}
    assert re.match(
        r"the values of a row must fit their types: got .*UTF.*Write the file", rows[5].error
    )


def test_offsets_out_of_a_damaged_file_are_not_followed():
    offsets = pa.array([0, 1, 1 << 30, 3], pa.int32()).buffers()[1]
    column = pa.Array.from_buffers(pa.string(), 3, [None, offsets, pa.py_buffer(b"abc")])
    rows = list(_tables.records(pa.RecordBatch.from_arrays([column], ["s"])))
    assert rows[0] == {"s": "a"}
    assert [type(item) for item in rows[1:]] == [Corrupt, Corrupt]


def test_a_date_that_python_cannot_hold_is_corrupt():
    column = pa.array([0, 1 << 62, 1_000_000], pa.int64()).cast(pa.timestamp("us"))
    rows = list(_tables.records(pa.RecordBatch.from_arrays([column], ["t"])))
    assert rows[0] == {"t": datetime.datetime(1970, 1, 1)}
    assert isinstance(rows[1], Corrupt)
    assert rows[2] == {"t": datetime.datetime(1970, 1, 1, 0, 0, 1)}


def test_columns_are_chosen_by_a_sequence_of_names():
    assert _tables.chosen(None) is None
    assert _tables.chosen(["a", "b"]) == ("a", "b")
    with pytest.raises(
        TypeError, match=r"sequence of names: got columns='a'\. Pass columns=\['a'\]"
    ):
        _tables.chosen("a")
    with pytest.raises(ValueError, match=r"name at least one: got columns=\[\]\. Leave it out"):
        _tables.chosen([])


def test_columns_must_be_there_once():
    _tables.check_columns(["a", "b"], ("b",), "x")
    message = r"have the columns of columns=: got x without \['c', 'd'\]\. Choose from \['a', 'b'\]"
    with pytest.raises(ValueError, match=message):
        _tables.check_columns(["a", "b"], ("c", "a", "d"), "x")
    message = r"each column must have a name of its own: got x with \['a', 'a'\]\. Write the file"
    with pytest.raises(ValueError, match=message):
        _tables.check_columns(["a", "a"], None, "x")


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"pyarrow, .*: pip install 'dovetail-data\[parquet\]'"):
        _tables.require_pyarrow()
