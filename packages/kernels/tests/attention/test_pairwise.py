# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Blocks of arrays with an entry per pair, against NumPy's slices."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_kernels.arrays import Cut
from dovetail_kernels.attention import forward, pairwise
from dovetail_kernels.attention.plan import plan_attention

RNG = np.random.default_rng(0)
B, N, T, S = 2, 6, 10, 15
QUERIES, KEYS = Cut(4, 3), Cut(8, 2)
SHAPES = [tuple(s) for s in itertools.product((1, B), (1, N), (1, T), (1, S))]
CALL = plan_attention(
    jnp.zeros((B, T, N, 4)), jnp.zeros((B, S, 2, 4)), jnp.zeros((B, S, 2, 4))
).call


def padded(x):
    """The array in full, and with zeros up to whole blocks where its own axes have them."""
    widths = [
        (0, 0 if n == 1 else whole - n) for n, whole in zip(x.shape[2:], (12, 16), strict=True)
    ]
    x = np.pad(x, ((0, 0), (0, 0), *widths))
    return x, np.broadcast_to(x, (B, N, 12, 16))


@pytest.mark.thorough
@pytest.mark.parametrize("ids", [[1], [0, 1], [1, 1]])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_block_and_its_gradient(shape, ids):
    x = RNG.standard_normal(shape).astype(np.float32)
    whole, full = padded(x)
    filled = pairwise.filled(jnp.asarray(x), QUERIES, KEYS)
    np.testing.assert_array_equal(filled, whole)
    where = pairwise.Place(jnp.int32(2), jnp.asarray(ids, jnp.int32), QUERIES, KEYS)
    columns = [slice(8 * i, 8 * i + 8) for i in np.broadcast_to(ids, B)]
    expected = np.stack([full[row, :, 8:12, c] for row, c in enumerate(columns)])
    block = pairwise.block(filled, where)
    np.testing.assert_array_equal(np.broadcast_to(block, (B, N, 4, 8)), expected)
    # Heads 0 to 2 share the first kv head, and are rows of one matrix with their queries.
    rows = np.broadcast_to(forward.bias_rows(CALL, filled, where), (B, 2, 12, 8))
    np.testing.assert_array_equal(rows, expected.reshape(B, 2, 12, 8))

    if shape[0] == 1 and shape[3] > 1 and len(ids) > 1:
        return  # `bounds` gives rows that share a bias the same ids
    ds = RNG.standard_normal((B, 2, 8, 12)).astype(np.float32)
    total = np.zeros((B, N, 12, 16))
    for row, c in enumerate(columns):
        total[row, :, 8:12, c] += ds[row].swapaxes(1, 2).reshape(N, 4, 8)
    axes = tuple(axis for axis in range(4) if shape[axis] == 1)
    found = pairwise.add_columns(filled, jnp.asarray(ds), where)
    # Sums of at most 2 x 6 x 4 x 8 terms.
    expected = whole + total.sum(axes, keepdims=True)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_the_summary_of_a_mask_spans_all_heads():
    mask = RNG.random((B, N, 12, 16)) < 0.9
    mask[0, :, 4:8, :8] = False
    mask[1, :, :4, 8:] = True
    shown, all_shown = pairwise.summary(jnp.asarray(mask), QUERIES, KEYS)
    for row, i, j in itertools.product(range(B), range(3), range(2)):
        block = mask[row, :, 4 * i : 4 * i + 4, 8 * j : 8 * j + 8]
        assert shown[i, row, j] == block.any()
        assert all_shown[i, row, j] == block.all()
    assert not shown[1, 0, 0]
    assert all_shown[0, 1, 1]
