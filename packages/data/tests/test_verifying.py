# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from dovetail_data import Bytes, Corpus, DamageError, Text, jsonl, verify, write


@pytest.fixture
def directory(tmp_path):
    lines = [json.dumps({"text": f"{i} some text"}) for i in range(9)]
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    source = jsonl(tmp_path / "x.jsonl")
    write(source, tmp_path / "c", encoder=Text(Bytes()), shard_bytes=1 << 20)
    return tmp_path / "c"


def make_older(directory):
    index = json.loads((directory / "index.json").read_text())
    del index["files"], index["sha256"]
    (directory / "index.json").write_text(json.dumps(index, indent=1) + "\n")


def flip(path, at=-1):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_every_byte_is_read(directory):
    report = verify(directory)
    sizes = [path.stat().st_size for path in directory.iterdir()]
    assert (report.files, report.bytes) == (len(sizes), sum(sizes))
    text = f"{directory}: {sum(sizes):,} bytes in {len(sizes)} files are as they were written"
    assert str(report) == text


def test_a_flip_that_no_document_sees_is_found(directory):
    path = directory / "00000.array_record"
    flip(path, 30)  # the header of a chunk
    assert Corpus(directory)[0]["tokens"].tolist() == [256, *b"0 some text", 257]
    with pytest.raises(DamageError, match=r"got .*00000\.array_record with another sha256"):
        verify(directory)


def test_all_damaged_files_are_named(directory):
    for name in ("00000.npy", "00000.array_record", "parts.json"):
        flip(directory / name)
    with pytest.raises(DamageError) as raised:
        verify(directory)
    lines = str(raised.value).splitlines()
    assert [line.split(" with ")[0].rsplit("/")[-1] for line in lines] == [
        "00000.array_record",
        "00000.npy",
        "parts.json",
    ]


def test_digests_are_added_to_an_older_corpus(directory, caplog):
    written = (directory / "index.json").read_bytes()
    make_older(directory)
    older = (directory / "index.json").read_bytes()
    verify(directory)
    assert len(caplog.records) == 1  # it says how to add them
    assert (directory / "index.json").read_bytes() == older
    verify(directory, add=True)
    assert (directory / "index.json").read_bytes() == written
    verify(directory, add=True)
    assert (directory / "index.json").read_bytes() == written


@pytest.mark.parametrize("name", ["00000.npy", "00000.array_record", "parts.json"])
def test_a_damaged_older_corpus_gets_no_digests(directory, name):
    make_older(directory)
    older = (directory / "index.json").read_bytes()
    flip(directory / name, 0)
    with pytest.raises(DamageError, match=name):
        verify(directory, add=True)
    assert (directory / "index.json").read_bytes() == older


def test_a_directory_without_a_corpus_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"must be finished: got directory=.*without index"):
        verify(tmp_path)
