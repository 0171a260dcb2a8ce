# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import inspect
import json
import os
import sys

import pytest
from array_record.python.array_record_module import ArrayRecordWriter

from dovetail_data.sources.array_record import array_record
from dovetail_data.sources.source import Corrupt, records

files = sys.modules["dovetail_data.sources._files"]
ROWS = [{"n": i, "text": os.urandom(8).hex()} for i in range(100)]


def write(path, contents, *, options="group_size:4"):
    writer = ArrayRecordWriter(str(path), options)
    for content in contents:
        writer.write(content)
    writer.close()


@pytest.fixture
def path(tmp_path):
    write(tmp_path / "a.array_record", [json.dumps(row).encode() for row in ROWS])
    return tmp_path / "a.array_record"


def test_a_part_is_a_range_of_records(path, monkeypatch):
    assert len(array_record(path).parts()) == 1
    monkeypatch.setattr(files, "PART_BYTES", path.stat().st_size // 3)
    source = array_record(path)
    assert [(input_part.start, input_part.stop) for input_part in source.parts()] == [
        (0, 33), (33, 66), (66, 99), (99, 100)
    ]  # fmt: skip
    assert list(source.read(source.parts()[1])) == ROWS[33:66]
    assert source.parts()[1].name == "a.array_record[33:66]"
    assert source.locate(source.parts()[1], 4) == "a.array_record record 37"
    assert sum(input_part.bytes for input_part in source.parts()) == path.stat().st_size


def test_records_are_decoded_as_asked(tmp_path):
    contents = [b'{"a": 1}', b"caf\xc3\xa9", b"\xff", b""]
    write(tmp_path / "a.array_record", contents)
    given = {}
    for decode in ("json", "text", "bytes"):
        source = array_record(tmp_path, decode=decode)
        given[decode] = list(source.read(source.parts()[0]))
    assert given["bytes"] == [{"bytes": content} for content in contents]
    assert given["text"][:2] == [{"text": '{"a": 1}'}, {"text": "café"}]
    assert given["text"][3] == {"text": ""}
    assert given["text"][2] == Corrupt(
        'a record must be UTF-8: got byte 0xff at its byte 0. Pass decode="bytes", or write the '
        "record again."
    )
    assert given["json"][0] == {"a": 1}
    assert all(isinstance(item, Corrupt) for item in given["json"][1:])
    prints = {array_record(tmp_path, decode=d).fingerprint for d in ("json", "text", "bytes")}
    assert len(prints) == 3


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("options", ["group_size:4", "group_size:4,uncompressed"])
def test_records_of_a_damaged_chunk_are_corrupt_and_the_others_are_read(
    tmp_path, monkeypatch, options, parts
):
    path = tmp_path / "a.array_record"
    write(path, [json.dumps(row).encode() for row in ROWS], options=options)
    content = bytearray(path.read_bytes())
    # In a compressed file, a byte before the index of chunks.
    place = content.find(ROWS[50]["text"].encode()) if "uncompressed" in options else 2000
    content[place] ^= 0x04
    path.write_bytes(content)
    monkeypatch.setattr(files, "PART_BYTES", len(content) // 3 if parts > 1 else len(content))
    source = array_record(path)
    assert len(source.parts()) == parts
    items = [item for input_part in source.parts() for item in source.read(input_part)]
    bad = [i for i, item in enumerate(items) if isinstance(item, Corrupt)]
    assert len(items) == 100
    assert bad in [list(range(start, start + 4)) for start in range(0, 100, 4)]
    assert [item for i, item in enumerate(items) if i not in bad] == [
        row for i, row in enumerate(ROWS) if i not in bad
    ]
    assert items[bad[0]].error.startswith("a record must be whole: got ")
    assert "mismatch" in items[bad[0]].error
    assert items[bad[0]].error.endswith("or leave the record out.")


def test_a_file_without_records(tmp_path):
    write(tmp_path / "a.array_record", [])
    assert array_record(tmp_path).parts() == ()


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "longer"])
def test_a_file_without_its_index_is_an_error(path, damage):
    content = path.read_bytes()
    damaged = {"cut": content[:-1], "empty": b"", "text": b"hello " * 50, "longer": content + b"?"}
    path.write_bytes(damaged[damage])
    message = r"must end with its index: got .*a\.array_record: .+\. Fetch or write"
    with pytest.raises(ValueError, match=message):
        array_record(path)


def test_another_decoding_is_refused(path):
    message = (
        r"decode must be one of \['json', 'text', 'bytes'\]: got decode='tokens'\. Pass decode="
    )
    with pytest.raises(ValueError, match=message):
        inspect.unwrap(array_record)(path, decode="tokens")


def test_a_file_that_changed_since_is_an_error(path):
    source = array_record(path)
    write(path, [b"x" * 100_000] * 2, options="group_size:1,uncompressed")
    message = r"must not change while it is read: got .*a\.array_record with"
    with pytest.raises(ValueError, match=message):
        list(records(source))
