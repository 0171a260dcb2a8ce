# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import os
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter

from dovetail_data.corpus.shard import Files, crc32_of, extents, read_extent

BLOCK = 1 << 16


def write_records(path, records):
    writer = ArrayRecordWriter(str(path), "group_size:1,uncompressed")
    for record in records:
        writer.write(record)
    writer.close()


def read_all(path, count):
    file = os.open(path, os.O_RDONLY)
    try:
        return [read_extent(file, *extent) for extent in list(extents(path))[:count]]
    finally:
        os.close(file)


def test_records_of_any_size_lie_where_they_are_said_to(tmp_path):
    rng = np.random.default_rng(0)
    sizes = [0, 1, 127, 128, BLOCK, BLOCK - 24, 3 * BLOCK + 5, 2, 0]
    sizes += rng.lognormal(7, 2, 300).astype(int).tolist()
    records = [rng.bytes(size) for size in sizes]
    write_records(tmp_path / "x", records)
    assert read_all(tmp_path / "x", len(records)) == records


@pytest.mark.parametrize("piece", [1000, BLOCK, 100_000])
def test_checksums_are_those_of_the_records(tmp_path, monkeypatch, piece):
    monkeypatch.setattr("dovetail_data.corpus.shard._PIECE_BYTES", piece)
    rng = np.random.default_rng(2)
    records = [rng.bytes(size) for size in (0, 1, 999, 1000, 1001, 3 * BLOCK + 5, BLOCK, 250_000)]
    write_records(tmp_path / "x", records)
    places = list(extents(tmp_path / "x"))[: len(records)]
    file = os.open(tmp_path / "x", os.O_RDONLY)
    assert [crc32_of(file, *place) for place in places] == list(map(zlib.crc32, records))
    os.truncate(tmp_path / "x", places[-1][0] + 100)
    assert crc32_of(file, *places[-1]) == zlib.crc32(records[-1][:100])
    os.close(file)


@pytest.mark.parametrize("shift", range(-50, 51))
def test_records_around_the_border_of_a_block(tmp_path, shift):
    # The first record's header is 64 bytes into the file; the second one's meets the border.
    records = [bytes([7]) * (BLOCK - 64 - 44 + shift), b"second" * 20, b"third"]
    write_records(tmp_path / "x", records)
    assert read_all(tmp_path / "x", 3) == records


@pytest.mark.parametrize("cut", [1, 100])
def test_a_file_that_ends_gives_fewer_bytes(tmp_path, cut):
    record = np.random.default_rng(1).bytes(2 * BLOCK)
    write_records(tmp_path / "x", [record])
    ((begin, size), *_) = extents(tmp_path / "x")
    os.truncate(tmp_path / "x", begin + size + 2 * 24 - cut)
    file = os.open(tmp_path / "x", os.O_RDONLY)
    assert read_extent(file, begin, size) == record[: len(record) - cut]
    os.close(file)


@pytest.mark.skipif(sys.platform != "linux", reason="open files are read from /proc")
def test_files_are_closed_when_others_are_opened(tmp_path, monkeypatch):
    monkeypatch.setattr("dovetail_data.corpus.shard._OPEN_FILES", 2)
    paths = [tmp_path / name for name in "abc"]
    for path in paths:
        path.write_text(path.name)

    def opened():
        links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
        return sum(Path(os.path.realpath(link)) in paths for link in links)

    files = Files(paths, lambda _: None)
    for i in (0, 1, 0, 2, 0, 1):
        assert os.pread(files[i], 9, 0) == paths[i].name.encode()
    assert opened() == 2
    del files
    assert opened() == 0
