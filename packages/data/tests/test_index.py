# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from dovetail_data import Bytes, Corpus, Text, text, write


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "x.txt").write_text("some text")
    write(text(tmp_path / "in"), tmp_path / "c", encoder=Text(Bytes()))
    return tmp_path / "c"


def test_an_unfinished_corpus_does_not_open(directory):
    (directory / "index.json").unlink()
    with pytest.raises(ValueError, match=r"must be finished: got directory=.*Call write"):
        Corpus(directory)


def test_another_format_does_not_open(directory):
    index = json.loads((directory / "index.json").read_text())
    (directory / "index.json").write_text(json.dumps(index | {"format": "dovetail-corpus/9"}))
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
