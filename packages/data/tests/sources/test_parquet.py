# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import os
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dovetail_data.sources.parquet import parquet
from dovetail_data.sources.source import Corrupt, records

ROWS = [
    {"n": i, "text": os.urandom(8).hex(), "messages": [{"role": "user", "content": f"m{i}"}]}
    for i in range(700)
]


@pytest.fixture
def path(tmp_path):
    table = pa.Table.from_pylist(ROWS)
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=300, write_page_checksum=True)
    return tmp_path / "a.parquet"


def flip_in(path, *, row_group, column):
    """Changes a byte of the values in the last page of a column."""
    with pq.ParquetFile(path) as file:
        chunk = file.metadata.row_group(row_group).column(column)
    content = bytearray(path.read_bytes())
    start = min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset)
    content[start + chunk.total_compressed_size - 20] ^= 0x10
    path.write_bytes(content)


def test_a_part_is_a_row_group(path):
    source = parquet(path)
    assert [input_part.name for input_part in source.parts()] == [
        "a.parquet[0:300]",
        "a.parquet[300:600]",
        "a.parquet[600:700]",
    ]
    first, second, third = source.parts()
    assert list(source.read(second)) == ROWS[300:600]
    assert list(source.read(third)) == ROWS[600:]
    assert source.locate(second, 7) == "a.parquet row 307"
    assert first.bytes > third.bytes > 100
    assert sum(input_part.bytes for input_part in source.parts()) < path.stat().st_size


def test_only_the_columns_that_are_wanted(path):
    source = parquet(path, columns=["n", "messages"])
    assert list(records(source)) == [{"n": r["n"], "messages": r["messages"]} for r in ROWS]
    assert source.fingerprint != parquet(path).fingerprint


def test_files_with_empty_row_groups(tmp_path):
    schema = pa.schema({"n": pa.int64()})
    with pq.ParquetWriter(tmp_path / "a.parquet", schema) as writer:
        for values in ([], [1, 2], [], [3]):
            writer.write_table(pa.table({"n": values}, schema=schema))
    pq.write_table(pa.table({"n": []}, schema=schema), tmp_path / "b.parquet")
    source = parquet(tmp_path)
    assert list(records(source)) == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert [source.locate(input_part, 0) for input_part in source.parts()] == [
        "a.parquet row 0",
        "a.parquet row 2",
    ]


@pytest.mark.parametrize("column", [0, 1, 3])
def test_a_damaged_row_group_is_corrupt_once_and_the_others_are_read(path, column):
    flip_in(path, row_group=1, column=column)
    source = parquet(path)
    first, second, third = source.parts()
    *given, last = source.read(second)
    assert given == ROWS[300 : 300 + len(given)]
    lost = 300 - len(given)
    message = rf"row group 1 must be readable: got .*its last {lost} of 300 rows are lost\. Fetch"
    assert re.match(message, last.error)
    assert source.locate(second, len(given)) == f"a.parquet row {300 + len(given)}"
    assert list(source.read(first)) == ROWS[:300]
    assert list(source.read(third)) == ROWS[600:]


def test_rows_before_the_damage_are_given(tmp_path):
    table = pa.table({"n": list(range(6000))})
    options = {"use_dictionary": False, "data_page_size": 4096, "write_batch_size": 512}
    pq.write_table(table, tmp_path / "a.parquet", write_page_checksum=True, **options)
    flip_in(tmp_path / "a.parquet", row_group=0, column=0)
    source = parquet(tmp_path)
    *given, last = source.read(source.parts()[0])
    assert 1000 < len(given) < 6000
    assert given == [{"n": i} for i in range(len(given))]
    assert f"its last {6000 - len(given)} of 6000 rows are lost" in last.error


def test_text_that_is_not_utf8_is_corrupt_row_by_row(tmp_path):
    values = pa.array([b"a", b"\xff", b"b"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"s": values}), tmp_path / "a.parquet")
    source = parquet(tmp_path)
    items = list(source.read(source.parts()[0]))
    assert [items[0], items[2]] == [{"s": "a"}, {"s": "b"}]
    assert isinstance(items[1], Corrupt)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"hello, world " * 9])
def test_a_file_without_a_footer_is_an_error(path, content):
    (path.parent / "b.parquet").write_bytes(content)
    message = r"must have a footer that can be read: got .*b\.parquet: .*Fetch or write the file"
    with pytest.raises(ValueError, match=message):
        parquet(path.parent)
    (path.parent / "b.parquet").write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ValueError, match=message):
        parquet(path.parent)


def test_a_column_that_a_file_lacks_is_an_error(path):
    pq.write_table(pa.table({"n": [1]}), path.parent / "b.parquet")
    message = r"got .*b\.parquet without \['text'\]\. Choose from \['n'\]"
    with pytest.raises(ValueError, match=message):
        parquet(path.parent, columns=["n", "text"])


def test_a_file_that_changed_since_is_an_error(path):
    source = parquet(path)
    pq.write_table(pa.Table.from_pylist(ROWS[:600]), path, row_group_size=300)
    with pytest.raises(
        ValueError, match=r"must not change while it is read: got .*a\.parquet with"
    ):
        list(source.read(source.parts()[0]))
