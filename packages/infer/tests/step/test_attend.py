# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rows of requests, and their places in the pages."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from dovetail_infer import reference
from dovetail_infer.step.attend import PagedAttention, Pages, requests

compiled = functools.partial(jax.jit, static_argnames="tokens")(requests)
TABLES = jnp.array([[[4, 2, 0], [1, 3, 5], [0, 0, 0]], [[7, 6, 0], [8, 9, 5], [0, 0, 0]]])


def test_rows_know_their_request_and_position():
    rows = compiled(TABLES, jnp.array([2, 3, 0]), jnp.array([5, 3, 0]), tokens=7)
    assert rows.row_request.tolist() == [0, 0, 1, 1, 1, 3, 3]
    assert rows.positions.tolist() == [3, 4, 0, 1, 2, 0, 0]
    assert rows.starts.tolist() == [0, 2, 5, 5]


def test_one_row_a_request_is_known_before_the_step():
    tables = jnp.stack([TABLES[0], TABLES[1].at[0, 0].set(-1)])  # behind a window
    rows = requests(tables, jnp.array([1, 1, 0]), jnp.array([5, 3, 0]), 3, single=True)
    assert isinstance(rows.starts, np.ndarray)
    general = compiled(tables, jnp.array([1, 1, 0]), jnp.array([5, 3, 0]), tokens=3)
    assert rows.positions.tolist() == general.positions.tolist() == [4, 2, 0]
    assert rows.row_request.tolist() == general.row_request.tolist() == [0, 1, 3]
    # Padding is a request with one key, in a page of the first request, or in any one there is.
    assert rows.starts.tolist() == [0, 1, 2, 3]
    assert rows.lengths.tolist() == [5, 3, 1]
    assert rows.tables[:, 2, 0].tolist() == [4, 0]
    np.testing.assert_array_equal(rows.tables[:, :2], tables[:, :2])


def test_keys_are_written_at_their_positions_in_the_layer_s_group():
    rows = compiled(TABLES, jnp.array([2, 3, 0]), jnp.array([5, 3, 0]), tokens=7)
    k = np.broadcast_to(np.arange(1, 8, dtype=np.float32)[None, :, None, None], (1, 7, 1, 2))

    @jax.jit
    def write(k, pool):
        plain = dict.fromkeys(("positions", "segment_ids", "window", "soft_cap", "scale", "sinks"))
        pages = Pages(pool, 1, None)
        _, after = PagedAttention(reference, rows)(k, k, -k, causal=True, kv=pages, **plain)
        assert after.group == 1
        return after.array

    after = write(k, np.zeros((10, 2, 4, 1, 2), np.float32))
    want = np.zeros((10, 4))
    want[7, 3], want[6, 0] = 1, 2  # positions 3 and 4 of request 0
    want[8, :3] = 3, 4, 5  # positions 0 to 2 of request 1; rows of padding write nothing
    np.testing.assert_array_equal(after[:, 0, :, 0, 0], want)
    np.testing.assert_array_equal(after[:, 1, :, 0, 1], -want)
