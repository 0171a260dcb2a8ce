# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_data import check_batch, pack, pad


def all_rows(rows):
    return rows.batch(np.arange(len(rows)))


def every_pair(lengths):
    ids = np.arange(sum(lengths))
    ends = np.cumsum([0, *lengths])
    documents = [ids[a:b] for a, b in itertools.pairwise(ends)]
    return np.concatenate([np.stack([one[:-1], one[1:]], axis=1) for one in documents])


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=30).filter(lambda n: max(n) > 1),
    length=st.integers(1, 23),
    seed=st.integers(0, 3),
)
@settings(max_examples=100, deadline=None)
def test_packing_keeps_every_pair_once(corpus_of, pairs, lengths, length, seed):
    rows = pack(corpus_of(lengths), length=length, seed=seed)
    batch = all_rows(rows)
    check_batch(batch, vocab_size=sum(lengths))
    found = pairs(batch)
    np.testing.assert_array_equal(found[np.argsort(found[:, 0])], every_pair(lengths))
    assert rows.fill == pytest.approx(len(found) / (len(rows) * length), rel=1e-12)
    # Within a segment the ids go on: a piece is a run of its document.
    inside = np.diff(batch["segment_ids"], axis=1, append=0) == 0
    inside &= batch["mask"] > 0
    following = np.roll(batch["tokens"], -1, axis=1)
    np.testing.assert_array_equal(following[inside], batch["targets"][inside])


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=30).filter(lambda n: max(n) > 1),
    extra=st.integers(0, 3),
)
@settings(max_examples=50, deadline=None)
def test_padding_keeps_every_pair_in_order(corpus_of, pairs, lengths, extra):
    rows = pad(corpus_of(lengths), length=max(lengths) - 1 + extra)
    batch = all_rows(rows)
    check_batch(batch, vocab_size=sum(lengths))
    np.testing.assert_array_equal(pairs(batch), every_pair(lengths))
    assert len(rows) == sum(n > 1 for n in lengths)
    assert batch["segment_ids"].max() == 1


def test_one_long_document_is_cut_at_repeated_boundaries(corpus_of):
    batch = all_rows(pack(corpus_of([8]), length=3))
    order = np.argsort(batch["tokens"][:, 0])
    assert batch["tokens"][order].tolist() == [[0, 1, 2], [3, 4, 5], [6, 0, 0]]
    assert batch["targets"][order].tolist() == [[1, 2, 3], [4, 5, 6], [7, 0, 0]]
    assert batch["mask"][order].tolist() == [[1, 1, 1], [1, 1, 1], [1, 0, 0]]
    assert batch["positions"][order].tolist() == [[0, 1, 2], [0, 1, 2], [0, 0, 0]]


def test_documents_that_fit_together_fill_their_rows(corpus_of):
    rows = pack(corpus_of([4, 6, 3, 2, 5, 8]), length=7)  # pairs 3 5 2 1 4 7
    assert len(rows) == math.ceil((3 + 5 + 2 + 1 + 4 + 7) / 7)
    segments = np.sort(all_rows(rows)["segment_ids"].max(axis=1))
    assert segments.tolist() == [1, 2, 2, 1] or rows.fill == pytest.approx(22 / 28)


def test_lognormal_documents_fill_999_of_1000_slots(corpus_of):
    lengths = np.maximum(np.random.default_rng(0).lognormal(4, 1, 4000).astype(int), 2)
    assert pack(corpus_of(lengths.tolist()), length=256).fill > 0.999


def test_the_seed_draws_and_nothing_else_does(corpus_of):
    corpus = corpus_of([5, 3, 9, 9, 2, 14, 6, 6, 6, 11])
    first, again, other = (pack(corpus, length=12, seed=seed) for seed in (1, 1, 2))
    assert first.fingerprint == again.fingerprint != other.fingerprint
    np.testing.assert_array_equal(all_rows(first)["tokens"], all_rows(again)["tokens"])
    assert not np.array_equal(all_rows(first)["tokens"], all_rows(other)["tokens"])


def test_rows_are_not_sorted_by_length(corpus_of):
    rows = pack(corpus_of([3] * 50 + [9] * 50), length=8, seed=0)
    segments = all_rows(rows)["segment_ids"].max(axis=1)
    assert 0 < np.abs(np.diff(segments)).sum() != segments.max() - segments.min()


def test_pad_refuses_what_it_would_have_to_cut(corpus_of):
    message = (
        r"must fit its row: got document=1 \(in.jsonl.*\) with 8 pairs, length=7. Pass length=9, "
        "or use pack"
    )
    with pytest.raises(ValueError, match=message):
        pad(corpus_of([4, 9, 10, 3]), length=7)


@pytest.mark.parametrize("make", [pack, pad])
def test_a_length_below_one_is_an_error(corpus_of, make):
    with pytest.raises(ValueError, match=r"length must be >= 1: got length=0. Pass"):
        make(corpus_of([3]), length=0)


@pytest.mark.parametrize("make", [pack, pad])
def test_a_corpus_without_a_pair_is_an_error(corpus_of, make):
    with pytest.raises(ValueError, match=r"must have a pair of ids: got 2 documents.*Use an enc"):
        make(corpus_of([1, 1]), length=4)
