# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What every source must do, over a table of all formats and compressions."""

import bz2
import contextlib
import gzip
import inspect
import itertools
import json
import lzma
import pickle
import random
import shutil
import sys

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest
import zstandard
from array_record.python.array_record_module import ArrayRecordWriter
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_data.sources.array_record import array_record
from dovetail_data.sources.arrow import arrow
from dovetail_data.sources.jsonl import jsonl
from dovetail_data.sources.parquet import parquet
from dovetail_data.sources.source import Corrupt, Source, records
from dovetail_data.sources.text import text

PACK = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}
SCHEMA = pa.schema(
    {
        "text": pa.string(),
        "n": pa.int64(),
        "messages": pa.list_(pa.struct({"role": pa.string(), "content": pa.string()})),
    }
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.just("user"), "content": st.none() | st.text(max_size=5)}
)
RECORD = st.fixed_dictionaries(
    {
        "text": st.text(max_size=30),
        "n": st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
        "messages": st.lists(MESSAGE, max_size=2),
    }
)


def write_text(path, rows, options, draw):
    # One file is one record: the names go on from `path`'s.
    for i, row in enumerate(rows):
        name = f"{path.name.split('.')[0]}{i:03d}.txt{options}"
        (path.parent / name).write_bytes(PACK[options](row["text"].encode()))


def write_jsonl(path, rows, options, draw):
    lines = [json.dumps(row, ensure_ascii=draw(st.booleans())).encode() for row in rows]
    path.with_name(f"{path.name}.jsonl{options}").write_bytes(PACK[options](b"\n".join(lines)))


def write_parquet(path, rows, options, draw):
    table = pa.Table.from_pylist(rows, SCHEMA)
    size = draw(st.integers(1, 9))
    pq.write_table(
        table, path.with_name(f"{path.name}.parquet"), row_group_size=size, compression=options
    )


def write_arrow(path, rows, options, draw):
    new, compression = options
    path = path.with_name(f"{path.name}.arrow")
    with new(path, SCHEMA, options=ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(
            pa.Table.from_pylist(rows, SCHEMA), max_chunksize=draw(st.integers(1, 9))
        )


def write_array_record(path, rows, options, draw):
    writer = ArrayRecordWriter(str(path.with_name(f"{path.name}.array_record")), options)
    for row in rows:
        writer.write(json.dumps(row).encode())
    writer.close()


CASES = {
    **{f"text{ending}": (text, write_text, ending) for ending in PACK},
    **{f"jsonl{ending}": (jsonl, write_jsonl, ending) for ending in PACK},
    **{
        f"parquet-{name}": (parquet, write_parquet, name)
        for name in ("none", "snappy", "gzip", "zstd")
    },
    **{
        f"arrow-{new.__name__}-{name}": (arrow, write_arrow, (new, name))
        for new in (ipc.new_stream, ipc.new_file)
        for name in (None, "lz4", "zstd")
    },
    **{
        f"array_record-{name}": (array_record, write_array_record, name)
        for name in ("group_size:1,uncompressed", "group_size:3,zstd", "group_size:2,brotli")
    },
}


@contextlib.contextmanager
def parts_of(part_bytes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["dovetail_data.sources._files"], "PART_BYTES", part_bytes)
        yield


@pytest.mark.parametrize("case", CASES)
@given(
    files=st.lists(st.lists(RECORD, min_size=1, max_size=12), min_size=1, max_size=2),
    part_bytes=st.integers(1, 4000),
    seed=st.integers(0, 99),
    data=st.data(),
)
@settings(max_examples=20, deadline=None)
def test_what_was_written_comes_back(tmp_path_factory, case, files, part_bytes, seed, data):
    make, write, options = CASES[case]
    directory = tmp_path_factory.mktemp("source")
    for i, rows in enumerate(files):
        write(directory / f"in{i}", rows, options, data.draw)
    expected = [row for rows in files for row in rows]
    if make is text:
        expected = [{"text": row["text"]} for row in expected]
    with parts_of(part_bytes):
        source = make(directory)
        assert isinstance(source, Source)
        assert list(records(source)) == expected
        parts = list(source.parts())
        order = random.Random(seed).sample(range(len(parts)), len(parts))
        again = pickle.loads(pickle.dumps(source))
        read = {i: list(again.read(parts[i])) for i in order}
        assert list(itertools.chain(*(read[i] for i in range(len(parts))))) == expected
        assert len({input_part.name for input_part in parts}) == len(parts)
        places = [
            source.locate(input_part, i)
            for j, input_part in enumerate(parts)
            for i in range(len(read[j]))
        ]
        assert len(set(places)) == len(expected)
        assert sum(input_part.bytes for input_part in parts) <= sum(
            file.bytes for file in source.files
        )


@pytest.mark.parametrize("case", CASES)
def test_the_fingerprint_follows_records_and_not_places(tmp_path, case):
    make, write, options = CASES[case]
    rows = [{"text": f"t{i}", "n": i, "messages": []} for i in range(9)]

    def draw(strategy):
        return True

    def source_of(name, rows):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "in", rows, options, draw)
        return make(tmp_path / name)

    source = source_of("a", rows)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert make(tmp_path / "b").fingerprint == source.fingerprint
    assert pickle.loads(pickle.dumps(source)).fingerprint == source.fingerprint
    changed = source_of("c", [*rows[:5], {**rows[5], "text": "t!"}, *rows[6:]])
    swapped = source_of("d", [rows[1], rows[0], *rows[2:]])
    assert len({source.fingerprint, changed.fingerprint, swapped.fingerprint}) == 3
    first = next(file for file in (tmp_path / "b").iterdir())
    first.rename(first.with_name("z" + first.name))
    assert make(tmp_path / "b").fingerprint != source.fingerprint


@pytest.mark.parametrize("case", CASES)
def test_the_first_corrupt_record_is_raised_with_its_place(tmp_path, case):
    make, write, options = CASES[case]
    rows = [{"text": "t", "n": 1, "messages": []}]
    write(tmp_path / "in", rows, options, lambda strategy: True)
    source = make(tmp_path)
    (input_part,) = source.parts()

    class Broken:
        fingerprint = source.fingerprint
        parts = source.parts
        locate = source.locate

        def read(self, part):
            yield from source.read(part)
            yield Corrupt("what must hold")

    given_records = records(Broken())
    assert len([next(given_records)]) == 1
    with pytest.raises(ValueError, match=rf"^{source.locate(input_part, 1)}: what must hold$"):
        next(given_records)


def test_records_do_not_hash_the_input(tmp_path, monkeypatch):
    (tmp_path / "a.jsonl").write_text('{"n": 1}')
    source = inspect.unwrap(jsonl)(tmp_path / "a.jsonl")

    def never(*_):
        raise AssertionError("the input was hashed")

    monkeypatch.setattr("hashlib.file_digest", never)
    assert list(inspect.unwrap(records)(source)) == [{"n": 1}]
