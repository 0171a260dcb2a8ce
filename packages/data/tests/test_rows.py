# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import sys

import grain
import numpy as np
import pytest

from dovetail_data import Span, pack, pad


def test_rows_by_number_are_those_of_the_batch(corpus_of):
    rows = pack(corpus_of([7, 3, 12, 5, 2, 2, 9]), length=6, seed=1)
    chosen = np.array([len(rows) - 1, 0, 2, 0])
    batch = rows.batch(chosen)
    for i, row in enumerate(rows.__getitems__(chosen.tolist())):
        for name, array in row.items():
            np.testing.assert_array_equal(array, batch[name][i])
            np.testing.assert_array_equal(array, rows[int(chosen[i])][name])
    dataset = grain.MapDataset.source(rows)
    np.testing.assert_array_equal(dataset[2]["tokens"], batch["tokens"][2])


def test_several_shards_are_one_corpus(corpus_of, monkeypatch):
    monkeypatch.setattr(sys.modules["dovetail_data.write"], "_CHUNK_BYTES", 1)
    monkeypatch.setattr(sys.modules["dovetail_data.sources.jsonl"], "_PART_BYTES", 30)
    many = corpus_of([7, 3, 12, 5, 2, 2, 9], shard_bytes=1)
    monkeypatch.undo()
    one = corpus_of([7, 3, 12, 5, 2, 2, 9])
    assert len(list(many.directory.glob("*.array_record"))) > 3
    rows = [pack(corpus, length=6, seed=1) for corpus in (one, many)]
    batches = [one.batch(np.arange(len(one))) for one in rows]
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
            here = row["segment_ids"] == segment
            begin = first_id[span.document] + span.start
            assert row["tokens"][here].tolist() == list(range(begin, begin + span.length))
    assert pad(corpus, length=11).explain(2) == [
        Span(document=2, start=0, length=11, source=corpus.source(2))
    ]


def test_the_fingerprint_names_corpus_and_packing(corpus_of):
    corpus, other = corpus_of([5, 4, 3]), corpus_of([5, 4, 4])
    names = [pad(one, length=n).fingerprint for one, n in ((corpus, 4), (corpus, 5), (other, 4))]
    assert len(set(names)) == 3
    assert names[0].split()[0] == names[1].split()[0] == f"corpus={corpus.fingerprint[:16]}"
    assert names[0].split()[1] != names[1].split()[1]


@pytest.mark.parametrize("row", [-1, 3])
def test_a_row_outside_is_an_error(corpus_of, row):
    rows = pad(corpus_of([5, 4, 3]), length=4)
    for access in (rows.__getitem__, rows.explain):
        with pytest.raises(IndexError, match=rf"in \[0, 3\): got row={row}. Use range"):
            access(row)
