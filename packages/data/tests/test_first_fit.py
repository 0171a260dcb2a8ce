# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_data.rows.first_fit import first_fit


def piece_by_piece(sizes, length):
    rooms, bins = [], []
    for size in sizes:
        i = next((i for i, room in enumerate(rooms) if room >= size), len(rooms))
        if i == len(rooms):
            rooms.append(length)
        rooms[i] -= size
        bins.append(i)
    return bins


@pytest.mark.parametrize("block", [1, 2, 8, 1024])
@given(
    case=st.integers(1, 24).flatmap(
        lambda length: st.tuples(
            st.just(length), st.lists(st.integers(1, length), min_size=1, max_size=80)
        )
    )
)
@settings(max_examples=100, deadline=None)
def test_each_piece_is_in_the_first_bin_that_holds_it(block, case):
    length, sizes = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["dovetail_data.rows.first_fit"], "_BLOCK", block)
        bins = first_fit(np.array(sizes), length=length)
    assert bins.tolist() == piece_by_piece(sizes, length)


def test_bins_beyond_one_block():
    sizes = np.random.default_rng(0).integers(1, 50, 4001)
    bins = first_fit(sizes, length=61)
    assert bins.max() > 1024
    assert bins.tolist() == piece_by_piece(sizes.tolist(), 61)


def test_no_pieces_need_no_bin():
    assert first_fit(np.zeros(0, np.int64), length=3).shape == (0,)
