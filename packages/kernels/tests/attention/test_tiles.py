# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Blocks cut out and put back, against NumPy's slices."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_kernels.arrays import Cut, cut
from dovetail_kernels.attention import tiles

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 12, 6, 3)).astype(np.float32)
ONE = Cut(4, 3)


@pytest.mark.thorough
def test_filled_up_to_whole_blocks():
    found = tiles.filled(jnp.asarray(X[:, :10]), ONE)
    np.testing.assert_array_equal(found[:, :10], X[:, :10])
    np.testing.assert_array_equal(found[:, 10:], np.zeros((2, 2, 6, 3)))


def test_a_block_of_queries_is_rows_by_head_of_its_group():
    found = np.asarray(tiles.query_block(jnp.asarray(X), jnp.int32(1), ONE, kv_heads=2))
    assert found.shape == (2, 2, 12, 3)
    for head in range(6):
        rows = found[:, head // 3, (head % 3) * 4 : (head % 3) * 4 + 4]
        np.testing.assert_array_equal(rows, X[:, 4:8, head])


def test_a_block_of_queries_goes_back_to_its_place():
    whole = jnp.asarray(X)
    block = tiles.query_block(whole, jnp.int32(2), ONE, kv_heads=2)
    found = tiles.put_query_block(whole, 2 * block, jnp.int32(2), ONE)
    np.testing.assert_array_equal(found[:, :8], X[:, :8])
    np.testing.assert_array_equal(found[:, 8:], 2 * X[:, 8:])


def test_a_block_of_keys_of_all_rows_and_of_each():
    shared = tiles.key_block(jnp.asarray(X), jnp.asarray([1]), ONE, kv_heads=6)
    np.testing.assert_array_equal(shared, X[:, 4:8].swapaxes(1, 2))
    own = tiles.key_block(jnp.asarray(X), jnp.asarray([2, 0]), ONE, kv_heads=6)
    np.testing.assert_array_equal(own[0], X[0, 8:].swapaxes(0, 1))
    np.testing.assert_array_equal(own[1], X[1, :4].swapaxes(0, 1))


def test_a_block_of_keys_of_one_row_with_its_heads_joined():
    ids = jnp.asarray([2])
    found = tiles.key_block(jnp.asarray(X), ids, ONE, kv_heads=1, row=jnp.int32(1))
    np.testing.assert_array_equal(found, X[1:, 8:].reshape(1, 1, 4, 18))
    found = tiles.key_block(jnp.asarray(X), ids, ONE, kv_heads=6, row=jnp.int32(1))
    np.testing.assert_array_equal(found, X[1:, 8:].swapaxes(1, 2))


def test_adding_to_a_block_of_keys_of_all_rows_and_of_each():
    y = RNG.standard_normal((2, 6, 4, 3)).astype(np.float32)
    for ids in ([1], [2, 0]):
        found = tiles.add_key_block(jnp.asarray(X), jnp.asarray(y), jnp.asarray(ids), ONE)
        expected = X.copy()
        for row, i in enumerate(np.broadcast_to(ids, 2)):
            expected[row, 4 * i : 4 * i + 4] += y[row].swapaxes(0, 1)
        np.testing.assert_array_equal(found, expected)


@settings(deadline=None)
@given(st.integers(1, 3000), st.sampled_from([64, 128, 1024]))
def test_blocks_cover_an_axis_evenly(length, largest):
    size, blocks = cut(length, largest)
    assert size <= largest
    assert size * (blocks - 1) < length <= size * blocks
    assert size == length or size % 8 == 0
    assert blocks == -(-length // largest)
    assert size * blocks - length < 8 * blocks
    assert isinstance(cut(length, largest), Cut)
