# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json
from types import MappingProxyType

import numpy as np
import pytest

from dovetail_data import Document, Field, Span, batches, ids, jsonl, pairs, write

LENGTHS = [(4, 3), (2, 6), (5, 5), (3, 2), (6, 4)]


class Pairs:
    """Records [n, m]: chosen ids 100 i + 1.., rejected 100 i + 51.., answers from the third id."""

    tokenizer = None
    layout = MappingProxyType(
        {
            "chosen": ids(1000),
            "chosen_mask": Field(dtype="|u1"),
            "rejected": ids(1000),
            "rejected_mask": Field(dtype="|u1"),
        }
    )
    manifest = MappingProxyType({"encoder": "pairs"})
    fingerprint = "pairs"

    def __call__(self, records):
        return [self.document(record["i"], *record["lengths"]) for record in records]

    def document(self, i, n, m):
        arrays = {
            "chosen": 100 * i + 1 + np.arange(n),
            "rejected": 100 * i + 51 + np.arange(m),
            "chosen_mask": (np.arange(n) >= 2).astype(np.uint8),
            "rejected_mask": (np.arange(m) >= 2).astype(np.uint8),
        }
        return Document(arrays=arrays)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    directory = tmp_path_factory.mktemp("pairs")
    lines = [json.dumps({"i": i, "lengths": pair}) for i, pair in enumerate(LENGTHS)]
    (directory / "x.jsonl").write_text("\n".join(lines))
    return write(jsonl(directory), directory / "c", encoder=Pairs())


def test_rows_lie_side_by_side(corpus):
    rows = pairs(corpus, length=5)
    batch = rows.batch(np.array([1, 0]))
    assert batch["tokens"].tolist() == [
        [101, 0, 0, 0, 0],
        [151, 152, 153, 154, 155],
        [1, 2, 3, 0, 0],
        [51, 52, 0, 0, 0],
    ]
    assert batch["targets"].tolist() == [
        [102, 0, 0, 0, 0],
        [152, 153, 154, 155, 156],
        [2, 3, 4, 0, 0],
        [52, 53, 0, 0, 0],
    ]
    assert batch["mask"].tolist() == [
        [0, 0, 0, 0, 0],
        [0, 1, 1, 1, 1],
        [0, 1, 1, 0, 0],
        [0, 1, 0, 0, 0],
    ]
    assert batch["segment_ids"].tolist() == (batch["tokens"] > 0).astype(int).tolist()
    assert batch["positions"][1].tolist() == [0, 1, 2, 3, 4]
    assert batch["pair_ids"].tolist() == [1, 1, 0, 0]
    assert {name: array.dtype.name for name, array in batch.items()} == {
        "tokens": "int32",
        "targets": "int32",
        "mask": "float32",
        "segment_ids": "int32",
        "positions": "int32",
        "pair_ids": "int32",
    }
    assert rows.tokens == sum(n + m - 2 for n, m in LENGTHS)
    assert rows.fill == rows.tokens / (10 * 5)
    assert corpus.lengths.tolist() == [max(pair) for pair in LENGTHS]


def test_one_row_keeps_an_axis_for_the_two(corpus):
    row = pairs(corpus, length=5)[2]
    assert row["tokens"].tolist() == [[201, 202, 203, 204, 0], [251, 252, 253, 254, 0]]
    assert row["pair_ids"].tolist() == [2, 2]


@pytest.mark.parametrize("hosts", [1, 2, 3])
def test_no_pair_is_cut_between_hosts_and_each_comes_once(corpus, hosts):
    rows = pairs(corpus, length=5)
    parts = [
        list(batches(rows, global_batch=12, seed=3, shard=(i, hosts), epochs=1))
        for i in range(hosts)
    ]
    joined = np.concatenate([host[0]["pair_ids"] for host in parts])
    counts = np.concatenate([host[0]["segment_ids"][:, 0] for host in parts])
    assert all(len(host) == 1 for host in parts)
    assert joined.reshape(-1, 2).tolist() == [[i, i] for i in joined[::2]]
    assert sorted(joined[::2][counts[::2] > 0].tolist()) == [0, 1, 2, 3, 4]
    alone = next(batches(rows, global_batch=12, seed=3, epochs=1))
    np.testing.assert_array_equal(alone["pair_ids"], joined)


def test_a_state_counts_pairs(corpus):
    it = batches(pairs(corpus, length=5), global_batch=4, seed=0)
    next(it)
    assert it.get_state()["row"] == 2


@pytest.mark.parametrize("batch, shards", [(3, 1), (6, 2), (0, 1)])
def test_a_batch_that_cuts_a_pair_is_an_error(corpus, batch, shards):
    message = rf"multiple of 2 rows on each of the {shards} hosts: got global_batch={batch}. Pass"
    with pytest.raises(ValueError, match=message):
        batches(pairs(corpus, length=5), global_batch=batch, seed=0, shard=(0, shards))


def test_what_does_not_fit_is_an_error(corpus):
    message = r"document=1 \(record 1 of x.jsonl.*\) of 5 slots, length=4. Pass length=5"
    with pytest.raises(ValueError, match=message):
        pairs(corpus, length=4)
    with pytest.raises(ValueError, match=r"length must be >= 1: got length=0. Pass"):
        pairs(corpus, length=0)


def test_explain(corpus):
    source = corpus.source(1)[0]
    assert pairs(corpus, length=5).explain(1) == [
        Span(document=1, start=0, length=5, source=source, record=1)
    ]


def test_another_corpus_is_an_error(corpus_of):
    with pytest.raises(ValueError, match=r"the field 'chosen': got .*'tokens'.*Write it with Pref"):
        pairs(corpus_of([3, 4]), length=4)


@pytest.mark.thorough
def test_a_pair_is_one_place_to_leave_out(corpus):
    rows = pairs(corpus, length=8)
    plain = batches(rows, global_batch=2, seed=0)
    assert plain.places(1) == range(1, 2)
    it = batches(rows, global_batch=2, seed=0, leave_out=[plain.places(1)])
    for step in (0, 2, 3):
        np.testing.assert_equal(next(it), plain.batch(step))
