# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import gzip
import json
import os
import sys

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_data.sources.jsonl import jsonl
from dovetail_data.sources.source import Corrupt, records

module = sys.modules["dovetail_data.sources.jsonl"]  # the attribute of that name is the function
files = sys.modules["dovetail_data.sources._files"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("jsonl")


@pytest.mark.thorough
@given(
    lines=st.lists(
        st.one_of(
            st.text(max_size=12).map(lambda text: json.dumps({"text": text}).encode()),
            st.text(max_size=12).map(lambda t: json.dumps([t], ensure_ascii=False).encode()),
            st.sampled_from([b"", b" ", b"\r", b"{", b"\xff"]),
        ),
        min_size=1,
        max_size=9,
    ),
    part_bytes=st.integers(1, 60),
    newline=st.sampled_from([b"\n", b"\r\n"]),
    last_newline=st.booleans(),
    mark=st.booleans(),
    ending=st.sampled_from(["", ".gz"]),
)
@settings(max_examples=80, deadline=None)
def test_each_line_is_read_once_and_located_wherever_parts_are_cut(
    directory, lines, part_bytes, newline, last_newline, mark, ending
):
    content = b"\xef\xbb\xbf" * mark + newline.join(lines) + newline * last_newline
    expected = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            record = json.loads(line) if line.startswith(b'{"') else None
            expected.append((f"any.jsonl{ending}:{number}", record))
    path = directory / f"any.jsonl{ending}"
    path.write_bytes(gzip.compress(content) if ending else content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "PART_BYTES", part_bytes)
        module._places.cache_clear()
        source = jsonl(path)
        items = [
            (source.locate(input_part, i), None if isinstance(item, Corrupt) else item)
            for input_part in source.parts()
            for i, item in enumerate(source.read(input_part))
        ]
        assert items == expected
        assert sum(input_part.bytes for input_part in source.parts()) == path.stat().st_size


def test_files_of_a_directory_with_all_fields(tmp_path):
    (tmp_path / "b.jsonl").write_text('{"body": "2", "n": [1]}\n{"body": "3"}')
    (tmp_path / "a.jsonl").write_text('{"body": "1"}\n')
    (tmp_path / "c.jsonl").write_text("")
    source = jsonl(tmp_path)
    assert list(records(source)) == [{"body": "1"}, {"body": "2", "n": [1]}, {"body": "3"}]
    assert [input_part.name for input_part in source.parts()] == ["a.jsonl[0:14]", "b.jsonl[0:37]"]


def test_a_compressed_file_is_one_part(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PART_BYTES", 10)
    (tmp_path / "a.jsonl.zst").write_bytes(zstandard.compress(b'{"n": 1}\n\n{"n": 2}\n' * 9))
    (input_part,) = jsonl(tmp_path).parts()
    assert (input_part.name, input_part.start, input_part.stop) == (
        "a.jsonl.zst",
        0,
        input_part.bytes,
    )
    assert len(list(jsonl(tmp_path).read(input_part))) == 18
    assert jsonl(tmp_path).locate(input_part, 17) == "a.jsonl.zst:27"


def test_a_cut_file_gives_its_lines_and_says_that_it_is_cut(tmp_path):
    lines = b"".join(b'{"n": "%s"}\n\n' % os.urandom(12).hex().encode() for _ in range(500))
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines)[:-2000])
    source = jsonl(tmp_path)
    (input_part,) = source.parts()
    *read, last = source.read(input_part)
    assert 300 < len(read) < 500
    assert read == [json.loads(line) for line in lines.split(b"\n\n")[: len(read)]]
    assert "must be whole: got one with its end missing, after" in last.error
    assert source.locate(input_part, len(read)) == f"a.jsonl.gz:{2 * len(read) + 1}"


@pytest.mark.parametrize(
    "name, content, error",
    [
        (
            "x.jsonl",
            gzip.compress(b'{"n": 1}\n' * 9),
            "must have the suffix of its format: got 'x.jsonl', which",
        ),
        ("x.jsonl.gz", b'{"n": 1}\n' * 9, "a .gz file must begin as that format does: got"),
        ("x.jsonl.gz", b"", "a .gz file must begin as that format does: got"),
    ],
)
def test_a_file_with_a_wrong_name_is_corrupt_once(tmp_path, monkeypatch, name, content, error):
    monkeypatch.setattr(files, "PART_BYTES", 10)
    (tmp_path / name).write_bytes(content)
    source = jsonl(tmp_path)
    (input_part,) = source.parts()
    (items,) = source.read(input_part)
    assert error in items.error
    assert source.locate(input_part, 0) == f"{name}:1"


@pytest.mark.parametrize("part_bytes", [7, 1 << 22])
def test_good_lines_around_a_bad_one_are_read(tmp_path, monkeypatch, part_bytes):
    monkeypatch.setattr(files, "PART_BYTES", part_bytes)
    (tmp_path / "x.jsonl").write_bytes(b'{"n": 1}\n\n["n"]\n{"n": 2}\n')
    source = jsonl(tmp_path / "x.jsonl")
    items = [item for input_part in source.parts() for item in source.read(input_part)]
    assert items[::2] == [{"n": 1}, {"n": 2}]
    assert "a record must be a JSON object: got an array" in items[1].error
    with pytest.raises(ValueError, match=r"^x\.jsonl:3: a record must be a JSON object"):
        list(records(source))


@pytest.mark.parametrize("content", [b'{"n": 1}\n', b'{"n": 1}\n' * 3])
def test_a_file_that_changed_since_is_an_error(tmp_path, content):
    (tmp_path / "x.jsonl").write_bytes(b'{"n": 1}\n' * 2)
    source = jsonl(tmp_path / "x.jsonl")
    (tmp_path / "x.jsonl").write_bytes(content)
    message = (
        rf"must not change while it is read: got .*x\.jsonl with bytes={len(content)}, it had 18"
    )
    with pytest.raises(ValueError, match=message):
        list(records(source))


def test_a_file_that_changes_during_a_part_is_an_error(tmp_path):
    (tmp_path / "x.jsonl").write_bytes(b'{"n": 1}\n' * 2)
    source = jsonl(tmp_path / "x.jsonl")
    (input_part,) = source.parts()
    reading = source.read(input_part)
    next(reading)
    os.truncate(tmp_path / "x.jsonl", 3)
    with pytest.raises(ValueError, match=r"got .*x\.jsonl with bytes=3, it had 18\. Make the"):
        list(reading)
