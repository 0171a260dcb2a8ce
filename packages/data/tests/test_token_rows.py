# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json
import sys
from types import MappingProxyType

import grain
import numpy as np
import pytest

from dovetail_data import (
    Corpus,
    CorruptError,
    Document,
    Field,
    Image,
    Part,
    Span,
    check_batch,
    ids,
    jsonl,
    pack,
    pad,
    write,
)


def test_rows_by_number_are_those_of_the_batch(corpus_of):
    rows = pack(corpus_of([7, 3, 12, 5, 2, 2, 9]), length=6, seed=1)
    numbers = np.array([len(rows) - 1, 0, 2, 0])
    batch = rows.batch(numbers)
    for i, row in enumerate(rows.__getitems__(numbers.tolist())):
        for name, array in row.items():
            np.testing.assert_array_equal(array, batch[name][i])
            np.testing.assert_array_equal(array, rows[int(numbers[i])][name])
    dataset = grain.MapDataset.source(rows)
    np.testing.assert_array_equal(dataset[2]["tokens"], batch["tokens"][2])


def test_several_shards_are_one_corpus(corpus_of, monkeypatch):
    monkeypatch.setattr("dovetail_data.writing.workers._CHUNK_BYTES", 1)
    monkeypatch.setattr(sys.modules["dovetail_data.sources._files"], "PART_BYTES", 30)
    many = corpus_of([7, 3, 12, 5, 2, 2, 9], shard_bytes=1)
    monkeypatch.undo()
    single = corpus_of([7, 3, 12, 5, 2, 2, 9])
    assert len(list(many.directory.glob("*.array_record"))) > 3
    rows = [pack(corpus, length=6, seed=1) for corpus in (single, many)]
    batches = [single.batch(np.arange(len(single))) for single in rows]
    for name in batches[0]:
        np.testing.assert_array_equal(batches[0][name], batches[1][name])


def test_explain_names_what_the_row_holds(corpus_of):
    lengths = [7, 3, 12, 5, 2, 2, 9]
    corpus = corpus_of(lengths)
    rows = pack(corpus, length=6, seed=1)
    first_id = np.cumsum([0, *lengths])
    for i in range(len(rows)):
        row = rows[i]
        spans = rows.explain(i)
        assert len(spans) == row["segment_ids"].max()
        for segment, span in enumerate(spans, start=1):
            inside = row["segment_ids"] == segment
            begin = first_id[span.document] + span.start
            assert row["tokens"][inside].tolist() == list(range(begin, begin + span.length))
    assert pad(corpus, length=11).explain(2) == [
        Span(document=2, start=0, length=11, source=corpus.source(2)[0], record=2)
    ]


def test_the_fingerprint_names_corpus_and_packing(corpus_of):
    corpus, other = corpus_of([5, 4, 3]), corpus_of([5, 4, 4])
    names = [
        pad(source, length=n).fingerprint for source, n in ((corpus, 4), (corpus, 5), (other, 4))
    ]
    assert len(set(names)) == 3
    assert names[0].split()[0] == names[1].split()[0] == f"corpus={corpus.fingerprint[:16]}"
    assert names[0].split()[1] != names[1].split()[1]


@pytest.mark.parametrize("row", [-1, 3])
def test_a_row_outside_is_an_error(corpus_of, row):
    rows = pad(corpus_of([5, 4, 3]), length=4)
    for access in (rows.__getitem__, rows.explain):
        with pytest.raises(IndexError, match=rf"in \[0, 3\): got row={row}. Use range"):
            access(row)


def flip_document(corpus: Corpus, document: int) -> Corpus:
    """The corpus with one bit flipped in the middle of a document's record, read anew."""
    (path,) = corpus.directory.glob("*.array_record")
    content = bytearray(path.read_bytes())
    row = corpus._tables[0][document]
    content[int(row["begin"]) + int(row["bytes"]) // 2] ^= 4
    path.write_bytes(content)
    return Corpus(corpus.directory)


def test_a_corrupt_document_costs_its_own_slots_alone(corpus_of):
    lengths = [7, 3, 12, 5, 2, 2, 9]
    corpus = corpus_of(lengths)
    whole = pack(corpus, length=6, seed=1)
    every = np.arange(len(whole))
    expected = whole.batch(every)
    rows = pack(flip_document(corpus, 2), length=6, seed=1)
    corrupt = []
    batch = rows.batch(every, corrupt=corrupt)
    first_id = np.cumsum([0, *lengths])
    lost = (expected["tokens"] >= first_id[2]) & (expected["tokens"] < first_id[3] - 1)
    lost &= expected["mask"] > 0
    assert lost.sum() == 11
    for name in expected:
        np.testing.assert_array_equal(batch[name], np.where(lost, 0, expected[name]))
    check_batch(batch, vocab_size=1 << 20)
    assert {damaged.document for damaged in corrupt} == {2}
    with pytest.raises(CorruptError):
        rows.batch(every)


def test_masks_of_documents_count_their_targets(tmp_path):
    class Masked:
        """A document of [n, *trained]: ids 1..n, trained at those places."""

        tokenizer = None
        layout = MappingProxyType({"tokens": ids(100), "mask": Field(dtype="|u1")})
        manifest = MappingProxyType({})
        fingerprint = "masked"

        def __call__(self, records):
            return [self.document(*record["text"]) for record in records]

        def document(self, n, *trained):
            mask = np.isin(np.arange(n), trained).astype(np.uint8)
            return Document(arrays={"tokens": np.arange(1, n + 1), "mask": mask})

    chats = [[5, 1, 3], [8, 0, 4, 5, 7], [3, 2]]
    (tmp_path / "x.jsonl").write_text("\n".join(json.dumps({"text": chat}) for chat in chats))
    corpus = write(jsonl(tmp_path), tmp_path / "c", encoder=Masked())
    batch = pad(corpus, length=7).batch(np.arange(3))
    assert batch["mask"].tolist() == [
        [1, 0, 1, 0, 0, 0, 0],
        [0, 0, 0, 1, 1, 0, 1],
        [0, 1, 0, 0, 0, 0, 0],
    ]
    packed = pack(corpus, length=4, seed=0)
    rows = packed.batch(np.arange(len(packed)))
    counted = np.sort(rows["targets"][rows["mask"] > 0])
    assert counted.tolist() == sorted([2, 4, 5, 6, 8, 3])  # id = place + 1; place 0 is no target


def test_rows_need_a_corpus_of_ids(tmp_path):
    encoder = Image()
    corpus = write(digits(tmp_path), tmp_path / "c", encoder=encoder)
    message = r"documents with the field 'tokens': got a corpus with \['image', 'label'\].*Write it"
    with pytest.raises(ValueError, match=message):
        pack(corpus, length=4)


def digits(directory):
    from PIL import Image as Pillow

    return FewImages(directory, Pillow)


class FewImages:
    """A source of one grey image."""

    fingerprint = "few"

    def __init__(self, directory, pillow):
        self.path = directory / "x.png"
        pillow.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(self.path)

    def parts(self):
        return [Part(name="x.png", path=str(self.path), start=0, stop=1, bytes=1)]

    def read(self, part):
        yield {"image": self.path.read_bytes(), "label": 3}

    def locate(self, part, i):
        return part.name
