# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json
import pickle
import re

import grain
import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordReader

from dovetail_data import Bytes, Corpus, CorruptError, DamageError, Text, text, write

TEXTS = {"a/1.txt": "x", "a/2.txt": "naïve\n", "b.txt": "lorem ipsum " * 3000, "c.txt": "日本語"}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    directory = tmp_path_factory.mktemp("texts")
    for name, content in TEXTS.items():
        (directory / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / "in" / name).write_text(content)
    with pytest.MonkeyPatch.context() as patch:
        # a chunk per file; shards of two documents, one and one
        patch.setattr("dovetail_data.writing.workers._CHUNK_BYTES", 1)
        return write(text(directory / "in"), directory / "c", encoder=Text(Bytes()), shard_bytes=20)


EXPECTED = [[256, *content.encode(), 257] for content in TEXTS.values()]


def test_documents_are_what_was_written(corpus):
    assert len(corpus) == 4
    for i, ids in enumerate(EXPECTED):
        assert corpus[i]["tokens"].dtype == np.int32
        assert corpus[i]["tokens"].tolist() == ids
    assert corpus.lengths.tolist() == [len(ids) for ids in EXPECTED]
    assert corpus.tokens == sum(len(ids) for ids in EXPECTED)
    assert corpus.text_bytes == sum(len(content.encode()) for content in TEXTS.values())
    assert (corpus.vocab_size, corpus.fields) == (258, ("tokens",))
    assert corpus.manifest == {"encoder": "text", "field": "text", "tokenizer": "bytes/1"}


def test_a_read_of_many_keeps_their_order(corpus):
    documents = [3, 0, 2, 2, 1, 0]
    read = corpus.__getitems__(documents)
    assert [document["tokens"].tolist() for document in read] == [EXPECTED[i] for i in documents]
    assert corpus.__getitems__([]) == []


def test_each_document_knows_its_file(corpus):
    assert [corpus.source(i) for i in range(4)] == [(name, 0) for name in TEXTS]


def test_it_pickles_and_serves_grain(corpus):
    copy = pickle.loads(pickle.dumps(corpus))
    dataset = grain.MapDataset.source(copy)
    assert [dataset[i]["tokens"].tolist() for i in range(4)] == EXPECTED


def test_another_process_does_not_verify_it_again(corpus, monkeypatch):
    pickled = pickle.dumps(corpus)

    def never(*_):
        raise AssertionError("the tables were read")

    monkeypatch.setattr("hashlib.file_digest", never)
    assert pickle.loads(pickled)[2]["tokens"].tolist() == EXPECTED[2]


@pytest.mark.parametrize("document", [-1, 4])
def test_a_document_outside_is_an_error(corpus, document):
    with pytest.raises(IndexError, match=rf"in \[0, 4\): got document={document}. Use range"):
        corpus[document]


@pytest.fixture
def copied(corpus, tmp_path):
    for path in corpus.directory.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


@pytest.mark.parametrize("name", ["00002.array_record", "00001.npy"])
@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_file_that_is_not_whole_is_an_error(copied, name, damage):
    if damage == "cut":
        (copied / name).write_bytes((copied / name).read_bytes()[:-1])
    else:
        (copied / name).unlink()
    with pytest.raises(ValueError, match=rf"must be whole: got .*{name} with bytes=.*Copy the"):
        Corpus(copied)


def flip(path, at, bit=1):
    content = bytearray(path.read_bytes())
    content[at] ^= bit
    path.write_bytes(content)


def test_a_flipped_bit_is_raised_not_returned(copied):
    path = copied / "00001.array_record"
    at = path.read_bytes().index(b"l\x00o\x00r\x00e\x00m\x00")  # within the ids of lorem ipsum
    flip(path, at + 2000)
    damaged = Corpus(copied)
    message = (
        "a document must be as it was written: got document=2 (record 0 of b.txt) in "
        f"{path}: its 72004 of 72004 bytes do not have their checksum. Copy the shard again"
    )
    with pytest.raises(CorruptError, match=re.escape(message)) as raised:
        damaged[2]
    documents = raised.value.documents
    assert [(entry.document, entry.shard) for entry in documents] == [(2, str(path))]
    assert damaged[3]["tokens"].tolist() == EXPECTED[3]


def test_what_is_damaged_is_listed_and_the_rest_is_read(copied):
    path = copied / "00001.array_record"
    flip(path, path.read_bytes().index(b"l\x00o\x00r\x00e\x00m\x00"))
    corrupt = []
    read = Corpus(copied).read(np.array([0, 2, 3, 1, 2]), corrupt=corrupt)
    assert [entry and entry["tokens"].tolist() for entry in read] == [
        EXPECTED[0],
        None,
        EXPECTED[3],
        EXPECTED[1],
        None,
    ]
    assert [entry.document for entry in corrupt] == [2, 2]


def test_a_shard_cut_after_it_was_opened_is_damaged_not_misread(copied):
    opened = Corpus(copied)
    path = copied / "00001.array_record"
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(CorruptError, match=r"document=2 .*: its \d+ of 72004 bytes do not have"):
        opened[2]


def test_a_disk_that_cannot_be_read_is_damage(corpus, monkeypatch):
    def broken(*_):
        raise OSError(5, "Input/output error")

    opened = Corpus(corpus.directory)
    monkeypatch.setattr("dovetail_data.corpus.corpus.read_extent", broken)
    corrupt = []
    assert opened.read(np.array([1, 3]), corrupt=corrupt) == [None, None]
    assert [entry.document for entry in corrupt] == [1, 3]
    assert all("Input/output error" in entry.error for entry in corrupt)


def test_a_flipped_bit_in_a_table_does_not_open(copied):
    path = copied / "00000.npy"
    flip(path, path.stat().st_size - 3)
    with pytest.raises(
        ValueError, match=r"must be as they were written: got .*00000.npy with another sha256"
    ):
        Corpus(copied)


@pytest.mark.thorough
def test_every_flip_in_a_shard_is_found_or_touches_no_document(corpus, copied):
    path = copied / "00002.array_record"
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    inside = whole.index("日本語".encode()[:1] + b"\0")
    places = [*range(inside - 40, inside + 30), *rng.integers(0, len(whole), 100).tolist()]
    flips = 0
    for at in places:
        path.write_bytes(whole)
        flip(path, at, 1 << int(rng.integers(8)))
        corrupt = []
        read = Corpus(copied).read(np.arange(4), corrupt=corrupt)
        assert [entry["tokens"].tolist() for entry in read[:3]] == EXPECTED[:3]
        if read[3] is None:
            flips += 1
            assert [entry.document for entry in corrupt] == [3]
        else:
            assert read[3]["tokens"].tolist() == EXPECTED[3]
    assert flips >= len(EXPECTED[3]) * 2  # each byte of the document's record was flipped


def test_the_files_are_array_records_of_the_ids(corpus):
    records = [
        record
        for path in sorted(corpus.directory.glob("*.array_record"))
        for record in ArrayRecordReader(str(path)).read_all()
    ]
    assert [np.frombuffer(record, "<u2").tolist() for record in records] == EXPECTED


def test_more_shards_than_open_files(corpus, monkeypatch):
    monkeypatch.setattr("dovetail_data.corpus.shard._OPEN_FILES", 1)
    opened = Corpus(corpus.directory)
    for i in (0, 3, 2, 0, 1, 3):
        assert opened[i]["tokens"].tolist() == EXPECTED[i]
    assert len(opened._files.open._open) == 1


def test_it_keeps_its_tokenizer(corpus, bpe, tmp_path):
    assert corpus.tokenizer.decode(corpus[1]["tokens"]) == TEXTS["a/2.txt"]
    (tmp_path / "x.txt").write_text("self.tokens")
    trained = write(text(tmp_path), tmp_path / "c", encoder=Text(bpe))
    assert trained.tokenizer.fingerprint == bpe.fingerprint
    assert trained.tokenizer.decode(trained[0]["tokens"]) == "self.tokens"
    assert (trained.tokenizer.bos_id, trained.tokenizer.eos_id) == (bpe.bos_id, bpe.eos_id)


def test_a_tokenizer_of_the_users_own_is_not_kept(corpus_of):
    with pytest.raises(ValueError, match=r"must keep its tokenizer.* by 'counting', with None"):
        _ = corpus_of([3, 4]).tokenizer


@pytest.mark.parametrize("other", [False, True])
def test_another_tokenizer_beside_it_is_an_error(copied, bpe, other):
    (copied / "bytes.json").unlink()
    if other:
        (copied / "tokenizer.json").write_text(bpe.content)
    with pytest.raises(DamageError, match=r"must be whole: got .*bytes.json with bytes=None"):
        Corpus(copied)
    older = json.loads((copied / "index.json").read_text())  # without a list of its files
    del older["files"], older["sha256"]
    (copied / "index.json").write_text(json.dumps(older))
    with pytest.raises(ValueError, match=r"must keep its tokenizer.*Decode with your own"):
        _ = Corpus(copied).tokenizer
