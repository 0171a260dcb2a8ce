# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import sys

import pyarrow as pa
import pyarrow.ipc as ipc
import pytest

from dovetail_data.sources.arrow import arrow
from dovetail_data.sources.source import Corrupt, records

files = sys.modules["dovetail_data.sources._files"]
ROWS = [{"n": i, "messages": [{"role": "user", "content": f"m{i}"}] * (i % 3)} for i in range(100)]
NEW = {"stream": ipc.new_stream, "file": ipc.new_file}


def write(path, table, *, kind="stream", batch=30, compression=None):
    options = ipc.IpcWriteOptions(compression=compression)
    with NEW[kind](path, table.schema, options=options) as writer:
        for record_batch in table.to_batches(max_chunksize=batch):
            writer.write_batch(record_batch)


def read(source):
    return [item for input_part in source.parts() for item in source.read(input_part)]


@pytest.fixture
def path(tmp_path):
    write(tmp_path / "a.arrow", pa.Table.from_pylist(ROWS))
    return tmp_path / "a.arrow"


@pytest.mark.parametrize("kind", NEW)
def test_a_part_is_a_run_of_batches(tmp_path, monkeypatch, kind):
    write(tmp_path / "a.arrow", pa.Table.from_pylist(ROWS), kind=kind)
    assert len(arrow(tmp_path).parts()) == 1
    monkeypatch.setattr(files, "PART_BYTES", 1)
    source = arrow(tmp_path)
    counts = [len(list(source.read(input_part))) for input_part in source.parts()]
    assert [count for count in counts if count] == [30, 30, 30, 10]
    assert list(records(source)) == ROWS
    assert source.locate(source.parts()[2], 5) == "a.arrow row 65"
    assert len({input_part.name for input_part in source.parts()}) == len(counts)
    size = (tmp_path / "a.arrow").stat().st_size
    assert 0.7 * size < sum(input_part.bytes for input_part in source.parts()) <= size


@pytest.mark.parametrize("kind", NEW)
@pytest.mark.parametrize("part_bytes", [1, 1 << 22])
def test_dictionaries_are_resolved(tmp_path, monkeypatch, kind, part_bytes):
    monkeypatch.setattr(files, "PART_BYTES", part_bytes)
    words = [f"w{i % 3}" for i in range(100)]
    table = pa.table({"w": pa.array(words).dictionary_encode(), "n": range(100)})
    write(tmp_path / "a.arrow", table, kind=kind)
    items = read(arrow(tmp_path))
    assert items == [{"w": w, "n": n} for n, w in enumerate(words)]
    if kind == "stream":
        assert len(arrow(tmp_path).parts()) == 1


@pytest.mark.parametrize("kind", NEW)
def test_only_the_columns_that_are_wanted(tmp_path, kind):
    write(tmp_path / "a.arrow", pa.Table.from_pylist(ROWS), kind=kind)
    source = arrow(tmp_path, columns=["n"])
    assert list(records(source)) == [{"n": i} for i in range(100)]
    assert source.fingerprint != arrow(tmp_path).fingerprint
    with pytest.raises(
        ValueError, match=r"got .*a\.arrow without \['x'\]\. Choose from \['n', 'mess"
    ):
        arrow(tmp_path, columns=["x"])


@pytest.mark.parametrize("part_bytes", [1, 1000, 1 << 22])
@pytest.mark.parametrize("dictionary", [False, True])
def test_a_stream_cut_anywhere_gives_its_batches_and_one_corrupt(
    tmp_path, monkeypatch, part_bytes, dictionary
):
    monkeypatch.setattr(files, "PART_BYTES", part_bytes)
    words = pa.array([f"w{i % 3}" for i in range(100)])
    table = pa.table({"w": words.dictionary_encode() if dictionary else words, "n": range(100)})
    write(tmp_path / "a.arrow", table)
    content = (tmp_path / "a.arrow").read_bytes()
    rows = table.to_pylist()
    with pa.memory_map(str(tmp_path / "a.arrow")) as stream:
        ipc.read_schema(stream)
        schema_bytes = stream.tell()
    assert read(arrow(tmp_path)) == rows
    seen = set()
    for size in {schema_bytes, *range(schema_bytes + 1, len(content), 37), len(content) - 8}:
        (tmp_path / "a.arrow").write_bytes(content[:size])
        *given, last = read(arrow(tmp_path))
        assert given == rows[: len(given)]
        assert isinstance(last, Corrupt)
        assert last.error.startswith("a stream must be whole: got ")
        assert last.error.endswith("what follows is lost. Fetch or write the file again.")
        seen.add(len(given))
    assert seen == {0, 30, 60, 90, 100}


@pytest.mark.parametrize("dictionary", [False, True])
def test_bytes_after_a_stream_are_not_passed_over(tmp_path, dictionary):
    words = pa.array([f"w{i % 3}" for i in range(100)])
    table = pa.table({"w": words.dictionary_encode() if dictionary else words})
    write(tmp_path / "a.arrow", table)
    content = (tmp_path / "a.arrow").read_bytes()
    (tmp_path / "a.arrow").write_bytes(content + content)
    *given, last = read(arrow(tmp_path))
    assert given == table.to_pylist()
    assert f"got {len(content)} bytes after the stream's end mark" in last.error


@pytest.mark.parametrize("kind", NEW)
def test_a_damaged_batch_is_corrupt_once_and_the_others_are_read(tmp_path, monkeypatch, kind):
    table = pa.table({"n": pa.array(range(4000)), "s": [f"{i % 7}" * 20 for i in range(4000)]})
    write(tmp_path / "a.arrow", table, kind=kind, batch=1000, compression="zstd")
    content = bytearray((tmp_path / "a.arrow").read_bytes())
    frames = [i for i in range(len(content)) if content.startswith(b"\x28\xb5\x2f\xfd", i)]
    content[frames[len(frames) // 2] + 1] ^= 0xFF
    (tmp_path / "a.arrow").write_bytes(content)
    source = arrow(tmp_path)
    items = read(source)
    bad = [i for i, item in enumerate(items) if isinstance(item, Corrupt)]
    assert bad in ([1000], [2000])
    rows = table.to_pylist()
    assert items[: bad[0]] == rows[: bad[0]]
    assert items[bad[0] + 1 :] == rows[bad[0] + 1000 :]
    assert items[bad[0]].error.startswith("a record batch must be readable: got ")
    assert items[bad[0]].error.endswith("its rows are lost. Fetch or write the file again.")
    assert source.locate(source.parts()[0], bad[0]) == f"a.arrow row {bad[0]}"


def test_a_stream_without_rows(tmp_path):
    write(tmp_path / "a.arrow", pa.table({"n": pa.array([], pa.int64())}))
    assert read(arrow(tmp_path)) == []


@pytest.mark.parametrize("content", [b"", b"hello, world " * 9, b"ARROW1\0\0 and no more of it"])
def test_a_file_that_is_no_arrow_is_an_error(path, content):
    (path.parent / "b.arrow").write_bytes(content)
    message = r"must be an IPC stream or file: got .*b\.arrow: .*Fetch or write the file again, or"
    with pytest.raises(ValueError, match=message):
        arrow(path.parent)


def test_a_file_that_changed_since_is_an_error(path):
    source = arrow(path)
    (input_part,) = source.parts()
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"must not change while it is read: got .*a\.arrow with"):
        list(source.read(input_part))
