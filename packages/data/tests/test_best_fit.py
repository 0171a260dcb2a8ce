# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_data.rows.best_fit import best_fit


def piece_by_piece(sizes, length):
    """Best-fit decreasing as it is usually told: the room left in each bin."""
    rooms = []
    for size in sorted(sizes, reverse=True):
        fitting = [i for i, room in enumerate(rooms) if room >= size]
        if not fitting:
            rooms.append(length - size)
            continue
        best = min(fitting, key=lambda i: rooms[i])
        rooms[best] -= size
    return sorted(rooms)


@given(
    st.integers(1, 24).flatmap(
        lambda length: st.tuples(st.just(length), st.lists(st.integers(1, length), min_size=1))
    )
)
@settings(max_examples=150, deadline=None)
def test_the_histogram_gives_what_piece_by_piece_gives(case):
    length, sizes = case
    groups = best_fit(np.bincount(sizes, minlength=length + 1), length=length)
    placed = np.zeros(length + 1, int)
    for group in groups:
        assert group.room == length - sum(size * each for size, each in group.items) >= 0
        for size, each in group.items:
            placed[size] += group.count * each
    np.testing.assert_array_equal(placed, np.bincount(sizes, minlength=length + 1))
    rooms = sorted(room for group in groups for room in [group.room] * group.count)
    assert rooms == piece_by_piece(sizes, length)


@pytest.mark.parametrize("pieces", [10**4, 10**7])
def test_the_search_does_not_grow_with_the_corpus(pieces):
    rng = np.random.default_rng(0)
    shape = rng.lognormal(4, 1, 512)
    counts = np.concatenate([[0], np.round(shape / shape.sum() * pieces)]).astype(np.int64)
    groups = best_fit(counts, length=512)
    assert len(groups) < 2 * 512
    assert sum(size * each * g.count for g in groups for size, each in g.items) == (
        counts @ np.arange(513)
    )
