# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import pickle
import sys

import grain
import numpy as np
import pytest

from dovetail_data import Bytes, Corpus, Text, text, write

TEXTS = {"a/1.txt": "x", "a/2.txt": "naïve\n", "b.txt": "lorem ipsum " * 3000, "c.txt": "日本語"}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    directory = tmp_path_factory.mktemp("texts")
    for name, content in TEXTS.items():
        (directory / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / "in" / name).write_text(content)
    with pytest.MonkeyPatch.context() as patch:
        # a chunk per file; shards of two documents, one and one
        patch.setattr(sys.modules["dovetail_data.write"], "_CHUNK_BYTES", 1)
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
    assert (corpus.vocab_size, corpus.tokenizer_fingerprint) == (258, Bytes().fingerprint)


def test_a_read_of_many_keeps_their_order(corpus):
    documents = [3, 0, 2, 2, 1, 0]
    read = corpus.__getitems__(documents)
    assert [one["tokens"].tolist() for one in read] == [EXPECTED[i] for i in documents]
    assert corpus.__getitems__([]) == []


def test_each_document_knows_its_file(corpus):
    assert [corpus.source(i) for i in range(4)] == list(TEXTS)


def test_it_pickles_and_serves_grain(corpus):
    copy = pickle.loads(pickle.dumps(corpus))
    dataset = grain.MapDataset.source(copy)
    assert [dataset[i]["tokens"].tolist() for i in range(4)] == EXPECTED


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


def test_a_flipped_bit_is_raised_not_returned(copied):
    path = copied / "00001.array_record"
    content = bytearray(path.read_bytes())
    at = content.index(b"l\x00o\x00r\x00e\x00m\x00")  # within the ids of lorem ipsum
    content[at + 2000] ^= 1
    path.write_bytes(content)
    damaged = Corpus(copied)
    with pytest.raises(RuntimeError):  # ArrayRecord's own error
        damaged[2]
    assert damaged[3]["tokens"].tolist() == EXPECTED[3]
