# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import inspect
import itertools
import math
import pickle
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_data import check_batch, pack, pad
from dovetail_data.rows.order import Permutation

METHODS = ["best_fit", "first_fit", "concat"]
SOME = st.lists(st.integers(1, 40), min_size=1, max_size=30).filter(lambda n: max(n) > 1)


def all_rows(rows):
    return rows.batch(np.arange(len(rows)))


def every_pair(lengths):
    ids = np.arange(sum(lengths))
    ends = np.cumsum([0, *lengths])
    documents = [ids[a:b] for a, b in itertools.pairwise(ends)]
    return np.concatenate(
        [np.stack([document[:-1], document[1:]], axis=1) for document in documents]
    )


@pytest.mark.thorough
@given(
    lengths=SOME,
    length=st.integers(1, 23),
    seed=st.integers(0, 3),
    method=st.sampled_from(METHODS),
)
@settings(max_examples=40, deadline=None)
def test_packing_keeps_every_pair_once(corpus_of, pairs, lengths, length, seed, method):
    rows = pack(corpus_of(lengths), length=length, seed=seed, method=method)
    batch = all_rows(rows)
    check_batch(batch, vocab_size=sum(lengths))
    packed = pairs(batch)
    np.testing.assert_array_equal(packed[np.argsort(packed[:, 0])], every_pair(lengths))
    assert rows.fill == pytest.approx(len(packed) / (len(rows) * length), rel=1e-12)
    # Within a segment the ids go on: a piece is a run of its document.
    inside = np.diff(batch["segment_ids"], axis=1, append=0) == 0
    inside &= batch["mask"] > 0
    following = np.roll(batch["tokens"], -1, axis=1)
    np.testing.assert_array_equal(following[inside], batch["targets"][inside])


@pytest.mark.thorough
@given(
    lengths=SOME,
    extra=st.integers(0, 3),
)
@settings(max_examples=25, deadline=None)
def test_padding_keeps_every_pair_in_order(corpus_of, pairs, lengths, extra):
    rows = pad(corpus_of(lengths), length=max(lengths) - 1 + extra)
    batch = all_rows(rows)
    check_batch(batch, vocab_size=sum(lengths))
    np.testing.assert_array_equal(pairs(batch), every_pair(lengths))
    assert len(rows) == sum(n > 1 for n in lengths)
    assert batch["segment_ids"].max() == 1


@pytest.mark.thorough
@given(lengths=SOME, length=st.integers(1, 23), seed=st.integers(0, 3))
@settings(max_examples=25, deadline=None)
def test_first_fit_is_what_is_usually_told(corpus_of, lengths, length, seed):
    rows = pack(corpus_of(lengths), length=length, seed=seed, method="first_fit")
    order = Permutation(len(lengths), key=f"documents/{seed}")(np.arange(len(lengths)))
    bins: list[list[tuple[int, int, int]]] = []
    for document in order.tolist():
        for start in range(0, lengths[document] - 1, length):
            n = min(length, lengths[document] - 1 - start)
            rooms = [length - sum(piece[2] for piece in pieces) for pieces in bins]
            fitting = [pieces for pieces, room in zip(bins, rooms, strict=True) if room >= n]
            if not fitting:
                bins.append([])
            (fitting or bins[-1:])[0].append((document, start, n))
    packed = [
        [(span.document, span.start, span.length) for span in rows.explain(i)]
        for i in range(len(rows))
    ]
    assert sorted(packed) == sorted(bins)


@given(lengths=SOME, length=st.integers(1, 23), seed=st.integers(0, 3))
@settings(max_examples=25, deadline=None)
def test_concat_is_the_documents_end_to_end(corpus_of, pairs, lengths, length, seed):
    rows = pack(corpus_of(lengths), length=length, seed=seed, method="concat")
    ends = np.cumsum([0, *lengths])
    order = Permutation(len(lengths), key=f"documents/{seed}")(np.arange(len(lengths)))
    documents = [np.arange(ends[i], ends[i + 1]) for i in order]
    expected = np.concatenate(
        [np.stack([document[:-1], document[1:]], axis=1) for document in documents]
    )
    batch = all_rows(rows)
    np.testing.assert_array_equal(pairs(batch), expected)
    filled = batch["mask"].sum(axis=1)
    assert (filled[:-1] == length).all()
    assert filled[-1] == len(expected) - length * (len(rows) - 1) > 0
    # A position counts from the start of the row or of the document, whichever came last.
    slot = np.arange(len(expected)) % length
    first = np.concatenate([np.arange(len(document) - 1) for document in documents])
    np.testing.assert_array_equal(batch["positions"][batch["mask"] > 0], np.minimum(slot, first))


@pytest.mark.parametrize("method", METHODS)
def test_one_long_document_is_cut_at_repeated_boundaries(corpus_of, method):
    batch = all_rows(pack(corpus_of([8]), length=3, method=method))
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


@pytest.mark.thorough
def test_lognormal_documents_fill_999_of_1000_slots(corpus_of):
    lengths = np.maximum(np.random.default_rng(0).lognormal(4, 1, 4000).astype(int), 2)
    assert pack(corpus_of(lengths.tolist()), length=256).fill > 0.999


@pytest.mark.parametrize("method", METHODS)
def test_the_seed_draws_and_nothing_else_does(corpus_of, method):
    corpus = corpus_of([5, 3, 9, 9, 2, 14, 6, 6, 6, 11])
    first, again, other = (pack(corpus, length=12, seed=seed, method=method) for seed in (1, 1, 2))
    assert first.identity(0) == again.identity(0) != other.identity(0)
    np.testing.assert_array_equal(all_rows(first)["tokens"], all_rows(again)["tokens"])
    assert not np.array_equal(all_rows(first)["tokens"], all_rows(other)["tokens"])


@pytest.mark.parametrize("method", METHODS)
def test_an_index_is_made_once(corpus_of, tmp_path, monkeypatch, method):
    corpus, other = corpus_of([5, 3, 9, 9, 2, 14, 6, 6, 6, 11]), corpus_of([5, 3, 9, 9, 2, 14])
    packed = pack(corpus, length=7, method=method, seed=1)
    kept = pack(corpus, length=7, method=method, seed=1, index=tmp_path / "a" / "b")
    module = sys.modules["dovetail_data.rows.pack"]
    with monkeypatch.context() as patch:
        patch.setattr(module, "_slots", lambda corpus: 1 / 0)
        again = pack(corpus, length=7, method=method, seed=1, index=tmp_path / "a" / "b")
        for of, options in (
            (corpus, {"length": 6, "seed": 1}),
            (corpus, {"length": 7, "seed": 2}),
            (other, {"length": 7, "seed": 1}),
        ):
            with pytest.raises(ZeroDivisionError):
                pack(of, method=method, index=tmp_path / "a" / "b", **options)
    for rows in (kept, again, pickle.loads(pickle.dumps(again))):
        assert rows.identity(0) == packed.identity(0)
        assert rows.explain(1) == packed.explain(1)
        np.testing.assert_array_equal(all_rows(rows)["tokens"], all_rows(packed)["tokens"])
    assert len(list((tmp_path / "a" / "b").iterdir())) == 1


@pytest.mark.parametrize("method", ["best_fit", "first_fit"])
def test_rows_are_not_sorted_by_length(corpus_of, method):
    rows = pack(corpus_of([3] * 50 + [9] * 50), length=8, seed=0, method=method)
    segments = all_rows(rows)["segment_ids"].max(axis=1)
    assert 0 < np.abs(np.diff(segments)).sum() != segments.max() - segments.min()


def test_pad_refuses_what_it_would_have_to_cut(corpus_of):
    message = (
        r"must fit its row: got document=1 \(in.jsonl.*\) of 8 slots, length=7. Pass length=9, "
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
    with pytest.raises(
        ValueError, match=r"must have a document of two ids: got 2 documents.*Use an enc"
    ):
        make(corpus_of([1, 1]), length=4)


def test_an_unknown_method_is_an_error(corpus_of):
    message = r"one of best_fit, first_fit, concat: got method='worst'. Pass \"best_fit\""
    with pytest.raises(ValueError, match=message):
        inspect.unwrap(pack)(corpus_of([3]), length=2, method="worst")
