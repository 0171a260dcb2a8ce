# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The forward loops alone: rows together in one product, and blocks of any size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_kernels.arrays import Cut, cut
from dovetail_kernels.attention.call import Inputs
from dovetail_kernels.attention.forward import forward
from dovetail_kernels.attention.plan import plan_attention

RNG = np.random.default_rng(0)
T, S = 37, 29
Q = jnp.asarray(RNG.standard_normal((3, T, 4, 8)), jnp.float32)
K, V = jnp.asarray(RNG.standard_normal((2, 3, S, 2, 8)), jnp.float32)
SEGMENTS = tuple(jnp.asarray(RNG.integers(0, 3, (3, n)), jnp.int32) for n in (T, S))
LENGTHS = jnp.asarray([29, 0, 11], jnp.int32)
CALL = plan_attention(Q, K, V, segment_ids=SEGMENTS, kv_lengths=LENGTHS).call
INPUTS = Inputs(Q, K, V, segment_ids=SEGMENTS, kv_lengths=LENGTHS)


def expected():
    """Rows of each head in float64, by the definition."""
    see = np.asarray(SEGMENTS[0])[:, :, None] == np.asarray(SEGMENTS[1])[:, None, :]
    see &= np.arange(S)[None, None] < np.asarray(LENGTHS)[:, None, None]
    k, v = (np.repeat(np.asarray(x, np.float64), 2, axis=2) for x in (K, V))
    logits = np.einsum("btnh,bsnh->btns", np.asarray(Q, np.float64), k) / np.sqrt(8)
    powers = np.where(see[:, :, None, :], np.exp(logits), 0)
    total = powers.sum(-1)
    with np.errstate(divide="ignore"):
        lse = np.log(total)
    out = np.einsum("btns,bsnh->btnh", powers, v) / np.where(total > 0, total, 1)[..., None]
    return out, lse, np.where(see[:, :, None, :], logits, -np.inf).max((1, 3))


@pytest.mark.thorough
@pytest.mark.parametrize("sizes", [(16, 8), (8, 40)])
def test_rows_that_visit_in_step_and_blocks_of_any_size(sizes):
    queries, keys = cut(T, sizes[0]), cut(S, sizes[1])
    found = jax.jit(lambda x: forward(CALL, x, queries, keys))(INPUTS)
    # Sums of 29 products of 8, in another order.
    for value, wanted in zip(found, expected(), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=2e-5, atol=2e-6)


@pytest.mark.thorough
def test_a_block_larger_than_the_axis_is_filling():
    found = jax.jit(lambda x: forward(CALL, x, Cut(64, 1), Cut(64, 1)))(INPUTS)
    for value, wanted in zip(found, expected(), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("sink", [200.0, -200.0])
def test_a_sink_far_from_the_logits_does_not_overflow(sink):
    """exp(200) is no float32: the sink may itself be what is subtracted."""
    call = plan_attention(Q, K, V, sinks=jnp.zeros(4)).call
    inputs = Inputs(Q, K, V, sinks=jnp.full(4, sink, jnp.float32))
    out, lse, _ = jax.jit(lambda x: forward(call, x, Cut(T, 1), Cut(S, 1)))(inputs)
    k, v = (np.repeat(np.asarray(x, np.float64), 2, axis=2) for x in (K, V))
    logits = np.einsum("btnh,bsnh->btns", np.asarray(Q, np.float64), k) / np.sqrt(8)
    right = np.logaddexp(np.log(np.exp(logits).sum(-1)), sink)
    np.testing.assert_allclose(lse, right, rtol=2e-5)
    weights = np.exp(logits - right[..., None])
    np.testing.assert_allclose(out, np.einsum("btns,bsnh->btnh", weights, v), rtol=2e-5, atol=2e-6)


@pytest.mark.thorough
def test_filling_is_not_the_largest_logit():
    """All logits are below 0, which a filling query of zeros would have."""
    q, k = -jnp.abs(Q) - 1, jnp.abs(K) + 1
    inputs = INPUTS._replace(q=q, k=k)
    largest = jax.jit(lambda x: forward(CALL, x, cut(T, 16), cut(S, 8)))(inputs)[2]
    see = np.asarray(SEGMENTS[0])[:, :, None] == np.asarray(SEGMENTS[1])[:, None, :]
    see &= np.arange(S)[None, None] < np.asarray(LENGTHS)[:, None, None]
    k = np.repeat(np.asarray(k, np.float64), 2, axis=2)
    logits = np.einsum("btnh,bsnh->btns", np.asarray(q, np.float64), k) / np.sqrt(8)
    right = np.where(see[:, :, None, :], logits, -np.inf).max((1, 3))
    assert right.max() < -1
    np.testing.assert_allclose(largest, right, rtol=2e-5)
