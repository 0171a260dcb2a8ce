# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from batches import pairs_of, rows_of
from hypothesis import given
from hypothesis import strategies as st

from dovetail_tune import with_mismatched

LENGTH = 12


def _document(batch, i):
    """The ids of a row, with 1 for those that count."""
    n = int((batch["segment_ids"][i] > 0).sum())
    ids = [int(batch["tokens"][i, 0]), *map(int, batch["targets"][i, :n])]
    return ids[: n + 1], [0.0, *map(float, batch["mask"][i, :n])]


def _expected(batch, i, j):
    """Ids and mask of the prompt of row i with the answer of row j; None if it is too long."""
    (ids, counts), (other, others) = _document(batch, i), _document(batch, j)
    start, first = counts.index(1.0), others.index(1.0)
    ids, counts = ids[:start] + other[first:], [0.0] * start + others[first:]
    return (ids, counts) if len(ids) - 1 <= batch["tokens"].shape[1] else None


def _check(batch, cycle):
    fields = next(with_mismatched([batch]))
    rows = len(batch["tokens"])
    fitting = 0
    for i in range(rows):
        wanted = _expected(batch, i, (i - cycle) % rows)
        own = {name: fields[f"kl_{name}"][i] for name in ("tokens", "targets", "mask")}
        segments, positions = fields["kl_segment_ids"][i], fields["kl_positions"][i]
        if wanted is None:
            assert not any(x.any() for x in (*own.values(), segments, positions))
            continue
        fitting += 1
        ids, counts = wanted
        n, zeros = len(ids) - 1, [0] * (batch["tokens"].shape[1] - len(ids) + 1)
        assert own["tokens"].tolist() == ids[:-1] + zeros
        assert own["targets"].tolist() == ids[1:] + zeros
        assert own["mask"].tolist() == counts[1:] + zeros
        assert segments.tolist() == [1] * n + zeros
        assert positions.tolist() == list(range(n)) + zeros
    return fitting


@given(st.integers(0, 10**6), st.integers(2, 6))
def test_rows_get_the_answer_of_the_row_before(seed, rows):
    _check(rows_of(rows=rows, length=LENGTH, seed=seed), 1)


@given(st.integers(0, 10**6), st.integers(2, 4))
def test_pairs_get_answers_of_the_pair_before(seed, pairs):
    _check(pairs_of(pairs=pairs, length=LENGTH, seed=seed), 2)


def test_some_fit_and_some_do_not():
    batch = rows_of(rows=6, length=LENGTH, seed=4)
    fitting = _check(batch, 1)
    assert 0 < fitting < 6
    data = with_mismatched([batch])
    fields = next(data)
    assert data.counts() == {"rows": 6, "left_out": 6 - fitting}
    assert {name: fields[name].dtype for name in fields if name.startswith("kl_")} == {
        "kl_tokens": np.int32,
        "kl_targets": np.int32,
        "kl_mask": np.float32,
        "kl_segment_ids": np.int32,
        "kl_positions": np.int32,
    }


def test_turns_between_the_answers_stay_masked():
    batch = rows_of(rows=2, length=LENGTH, seed=5)
    start = int(batch["mask"][0].argmax())
    batch["mask"][0, start + 1] = 0
    assert _check(batch, 1)


def test_a_combination_that_just_fits():
    tokens = np.arange(8).reshape(2, 4)
    batch = {
        "tokens": tokens,
        "targets": tokens + 1,
        "mask": np.array([[0, 1, 1, 1], [0, 0, 1, 1]]),
    }
    fields = next(with_mismatched([batch]))
    # Row 0: 2 ids of its prompt and 2 targets of row 1. Row 1: 3 ids and 3 targets, one too many.
    assert fields["kl_tokens"].tolist() == [[0, 1, 7, 0], [0] * 4]
    assert fields["kl_targets"].tolist() == [[1, 7, 8, 0], [0] * 4]
    assert fields["kl_mask"].tolist() == [[0, 1, 1, 0], [0] * 4]
    batch["mask"] = np.array([[0, 0, 1, 1], [0, 0, 1, 1]])
    assert next(with_mismatched([batch]))["kl_segment_ids"].all()


def test_rows_without_an_answer_are_left_out():
    batch = rows_of(rows=4, length=LENGTH, seed=2)
    batch["mask"][1] = 0
    # Short enough for any prompt.
    batch["segment_ids"][1, 2:] = 0
    fields = next(with_mismatched([batch]))
    for name in ("tokens", "targets", "mask", "segment_ids", "positions"):
        assert not fields[f"kl_{name}"][[1, 2]].any()


@pytest.mark.parametrize(("rows", "message"), [(1, r"got 1 rows; pass"), (0, r"got 0 rows; pass")])
def test_one_row_has_no_other(rows, message):
    batch = {name: x[:rows] for name, x in rows_of(rows=2).items()}
    with pytest.raises(ValueError, match=r"must have another row or pair .* " + message):
        next(with_mismatched([batch]))


def test_one_pair_has_no_other():
    with pytest.raises(ValueError, match=r"another row or pair .*, got 2 rows of one pair; pass"):
        next(with_mismatched([pairs_of(pairs=1)]))


@pytest.mark.parametrize("segments", [[1, 1, 2, 2], [0, 1, 1, 1], [1, 1, 0, 1]])
def test_rows_of_several_documents_are_refused(segments):
    batch = {name: x[:, :4] for name, x in rows_of(rows=3).items()}
    batch["segment_ids"] = np.array([[1] * 4, segments, [1] * 4])
    with pytest.raises(ValueError, match=r"one document each, .* in row 1; batch without packing"):
        next(with_mismatched([batch]))


def test_fields_are_not_added_twice():
    with pytest.raises(ValueError, match=r"must be new, got a batch that has kl_tokens, .*; pass"):
        next(with_mismatched(with_mismatched([rows_of(rows=2)])))
