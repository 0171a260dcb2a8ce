# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import contextlib
import hashlib
import json
import random
import re

import pytest

from dovetail_data import Bytes, Corpus, DamageError, Text, text, write


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "x.txt").write_text("some text")
    write(text(tmp_path / "in"), tmp_path / "c", encoder=Text(Bytes()))
    return tmp_path / "c"


def older(directory, **changed):
    """Writes the index as versions without digests did; returns it."""
    index = json.loads((directory / "index.json").read_text())
    del index["files"], index["sha256"]
    (directory / "index.json").write_text(json.dumps(index | changed, indent=1) + "\n")
    return index | changed


def test_an_unfinished_corpus_does_not_open(directory):
    (directory / "index.json").unlink()
    with pytest.raises(ValueError, match=r"must be finished: got directory=.*Call write"):
        Corpus(directory)


def test_another_format_does_not_open(directory):
    older(directory, format="dovetail-corpus/9")
    with pytest.raises(ValueError, match=r"'dovetail-corpus/2': got format='dovetail-corpus/9'.*W"):
        Corpus(directory)


def test_the_fingerprint_is_of_the_content_alone(directory, tmp_path):
    same = write(
        text(tmp_path / "in"), tmp_path / "same", encoder=Text(Bytes()), shard_bytes=1 << 20
    )
    assert same.fingerprint == Corpus(directory).fingerprint
    (tmp_path / "in" / "x.txt").write_text("some test")
    other = write(text(tmp_path / "in"), tmp_path / "other", encoder=Text(Bytes()))
    assert other.fingerprint != same.fingerprint


def test_no_path_of_this_machine_is_recorded(directory):
    for name in ("index.json", "parts.json", "ledger.jsonl"):
        assert str(directory.parent) not in (directory / name).read_text()


def test_every_file_is_under_one_digest(directory):
    content = (directory / "index.json").read_bytes()
    index = json.loads(content)
    body = content[: content.rindex(b",\n")]
    assert index["sha256"] == hashlib.sha256(body).hexdigest()
    named = {file["file"]: file for shard in index["shards"] for file in shard_files(shard)}
    files = {**named, **index["files"]}
    assert {path.name for path in directory.iterdir()} == {*files, "index.json"}
    for name, entry in files.items():
        file = (directory / name).read_bytes()
        assert (entry["bytes"], entry["sha256"]) == (len(file), hashlib.sha256(file).hexdigest())


def shard_files(shard):
    return [shard["records"], shard["table"]]


@pytest.mark.thorough
def test_a_flip_of_any_bit_is_found_with_its_file(directory):
    names = ["index.json", "parts.json", "ledger.jsonl", "bytes.json", "00000.npy"]
    rng = random.Random(0)
    for name in names:
        path = directory / name
        whole = path.read_bytes()
        last = range(8 * (len(whole) - 90), 8 * len(whole), 5)  # the line with the digest
        bits = rng.sample(range(8 * len(whole)), 20) + (list(last) if name == "index.json" else [])
        for bit in bits:
            damaged = bytearray(whole)
            damaged[bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            with pytest.raises(DamageError, match=re.escape(f"got {path} with")):
                Corpus(directory)
        path.write_bytes(whole)
    assert len(Corpus(directory)) == 1


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"[" * 100_000, b'{"format": 1}'])
@pytest.mark.parametrize("name", ["index.json", "parts.json"])
def test_other_bytes_are_an_error_that_names_the_file(directory, name, content):
    older(directory)
    (directory / name).write_bytes(content)
    with pytest.raises(ValueError, match=r"got (.*json with|format=1 in)"):
        Corpus(directory).source(0)


def test_an_older_index_is_read_with_a_warning(directory, caplog):
    expected = Corpus(directory)
    assert not caplog.records
    older(directory)
    opened = Corpus(directory)
    (record,) = caplog.records
    assert record.getMessage() == (
        f"a corpus should have a digest of all its files: got {directory}, of an older version. "
        f"Add it with python -m dovetail_data verify {directory} --add."
    )
    assert opened.fingerprint == expected.fingerprint
    assert opened[0]["tokens"].tolist() == expected[0]["tokens"].tolist()
    assert opened.source(0) == ("x.txt", 0)


@pytest.mark.parametrize(
    "changed",
    [
        {"tokens": 12},
        {"documents": 2},
        {"text_bytes": 1},
        {"dropped": 1},
        {"corrupt": 1},
        {"fingerprint": "0" * 64},
        {"layout": {"tokens": {"dtype": ">u2", "ndim": 1, "vocab_size": 258}}},
        {"manifest": {}},
        {"shards": 3},
        {"shards": [{}]},
        {"shards": [{"documents": "1"}]},
    ],
)
def test_an_older_index_that_contradicts_itself_is_damaged(directory, changed):
    older(directory, **changed)
    with pytest.raises(DamageError, match=re.escape(f"got {directory / 'index.json'} with")):
        Corpus(directory)


@pytest.mark.thorough
def test_every_flip_of_an_older_index_is_an_error_or_changes_no_document(directory):
    older(directory)
    path = directory / "index.json"
    whole, expected = path.read_bytes(), Corpus(directory)[0]["tokens"].tolist()
    rng = random.Random(1)
    for bit in rng.sample(range(8 * len(whole)), 300):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with contextlib.suppress(ValueError):  # every other error fails the test
            opened = Corpus(directory)
            assert opened[0]["tokens"].tolist() == expected
            assert (len(opened), opened.tokens, opened.text_bytes) == (1, 11, 9)
