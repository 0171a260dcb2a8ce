# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Every query is in one tile, and none costs much more than itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_kernels.paged.tiles import SIZES, tiles

ROWS = 200
cut = jax.jit(lambda counts: [some._replace(size=0) for some in tiles(counts, rows=ROWS)])


@pytest.mark.thorough
@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.lists(st.integers(0, 130), min_size=5, max_size=5).filter(lambda n: sum(n) <= ROWS))
def test_every_query_once(counts):
    seen, requests = [], len(counts)
    for size, some in zip(SIZES, cut(jnp.array(counts, jnp.int32)), strict=True):
        assert len(some.rows) == (requests if size < SIZES[-1] else ROWS // size + requests)
        assert (np.asarray(some.rows) > 0).sum() == some.real
        for request, offset, rows in zip(some.request, some.offset, some.rows, strict=True):
            assert rows <= size
            seen += [(int(request), int(offset) + i) for i in range(rows)]
    assert sorted(seen) == [(r, i) for r, n in enumerate(counts) for i in range(n)]


def test_a_row_that_decodes_costs_one_row_beside_a_prefill():
    one, eight, long = cut(jnp.array([1, 130, 8, 9, 0], jnp.int32))
    assert [int(some.real) for some in (one, eight, long)] == [1, 2, 3]
    np.testing.assert_array_equal(one.request[:1], [0])
    np.testing.assert_array_equal(eight.rows[:2], [2, 8])
    np.testing.assert_array_equal(eight.offset[:2], [128, 0])
    np.testing.assert_array_equal(long.rows[:3], [64, 64, 9])
    np.testing.assert_array_equal(long.offset[:3], [0, 64, 0])


@pytest.mark.thorough
def test_sizes_that_the_rows_cannot_need_are_left_out():
    counts = jnp.array([1, 0], jnp.int32)
    assert [[t.size for t in tiles(counts, rows=rows)] for rows in (1, 2, 8, 9)] == [
        [1],
        [1, 8],
        [1, 8],
        [1, 8, 64],
    ]


@pytest.mark.thorough
def test_there_are_no_more_tiles_than_rows():
    counts = jnp.array([1, 0, 0, 1, 0], jnp.int32)
    assert [len(some.rows) for some in tiles(counts, rows=2)] == [2, 2]
    (alone,) = tiles(jnp.array([2, 0, 1], jnp.int32), rows=3, sizes=(1,))
    np.testing.assert_array_equal(alone.request, [0, 0, 2])
    np.testing.assert_array_equal(alone.offset, [0, 1, 0])
    np.testing.assert_array_equal(alone.rows, [1, 1, 1])
