# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dovetail_optim import accumulate, guard
from dovetail_optim.testing import check_transformation

RNG = np.random.default_rng(0)
W = jnp.asarray(RNG.normal(size=(4, 3)), jnp.float32)
X = RNG.normal(size=(24, 4)).astype(np.float32)
Y = RNG.normal(size=(24, 3)).astype(np.float32)
# Rows that count: uneven, and none at all in rows 8 to 11.
MASK = (RNG.random(24) < np.linspace(0.2, 1, 24)).astype(np.float32)
MASK[8:12] = 0


def loss(w, rows):
    error = ((jnp.asarray(X[rows]) @ w - Y[rows]) ** 2).sum(1)
    return (error * MASK[rows]).sum()


def train(parts, steps=3):
    """Steps over all rows, in so many microbatches each."""
    tx = accumulate(optax.adamw(1e-2), every=parts)
    w, state = W, tx.init(W)
    update = jax.jit(tx.update)
    for _ in range(steps):
        for rows in np.split(np.arange(24), parts):
            before = np.array(w)
            updates, state = update(
                jax.grad(loss)(w, rows), state, w, count=jnp.float32(MASK[rows].sum())
            )
            w = optax.apply_updates(w, updates)
            if int(state.microbatches):
                assert np.array(w).tobytes() == before.tobytes()
    return w


@pytest.mark.capability("exact gradients of unequal microbatches")
def test_any_number_of_ragged_microbatches_is_one_batch():
    """Against Adam by hand in float64, of the gradient of the mean over what counts."""
    w, m, v = np.asarray(W, np.float64), 0.0, 0.0
    for t in range(1, 4):
        g = 2 * X.astype(np.float64).T @ ((X.astype(np.float64) @ w - Y) * MASK[:, None])
        g = g / MASK.sum()
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        adam = m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        w = w - 1e-2 * (adam + 1e-4 * w)
    for parts in (1, 2, 4, 6):
        # Three steps of float32; Adam's first divides a gradient by itself.
        np.testing.assert_allclose(train(parts), w, rtol=1e-5, atol=1e-6)


def test_a_count_of_nothing_leaves_the_step_out():
    tx = accumulate(optax.adam(0.1), every=2)
    state = tx.init(W)
    for _ in range(2):
        updates, state = tx.update(jnp.ones_like(W), state, W, count=0)
    assert np.array(updates).tobytes() == np.full(W.shape, -0.0, np.float32).tobytes()
    assert int(state.inner[0].count) == 0
    assert float(state.total) == 0
    np.testing.assert_array_equal(state.sums, 0)


@pytest.mark.thorough
def test_a_nan_costs_its_own_microbatches():
    tx = accumulate(guard(optax.adam(0.1)), every=2)
    state, moved = tx.init(W), []
    for g in (1.0, np.nan, 1.0, 1.0):
        updates, state = tx.update(jnp.full_like(W, g), state, W, count=1.0)
        moved.append(bool(np.any(np.asarray(updates) != 0)))
    assert moved == [False, False, False, True]
    assert np.isfinite(updates).all()
    assert int(state.inner.history.skipped) == 1


def test_sums_of_bfloat16_are_float32():
    tx = accumulate(optax.sgd(1.0), every=3)
    w = jnp.zeros(2, jnp.bfloat16)
    state = tx.init(w)
    assert state.sums.dtype == jnp.float32
    for g in (256.0, 1.0, 1.0):  # 257 is no bfloat16: a sum in it would stay at 256
        updates, state = tx.update(jnp.full(2, g, jnp.bfloat16), state, w, count=1)
    assert updates.dtype == jnp.bfloat16
    np.testing.assert_array_equal(updates.astype(jnp.float32), -86.0)


@pytest.mark.thorough
@pytest.mark.parametrize("every", [1, 3])
def test_contract(every):
    check_transformation(accumulate(optax.adamw(1e-2), every=every), {"w": W}, count=5.0)


def test_wrong_calls():
    with pytest.raises(ValueError, match=r"every must be at least 1 microbatch, got every=0. Use"):
        accumulate(optax.sgd(1.0), every=0)
    tx = accumulate(optax.sgd(1.0), every=2)
    with pytest.raises(ValueError, match=r"needs count.*got count=None. Use update\("):
        tx.update(W, tx.init(W), W)


def test_line_searches_are_refused_as_their_value_is_of_one_microbatch():
    tx, given = accumulate(optax.lbfgs(), every=2), {"value": 1.0, "grad": W, "value_fn": jnp.sum}
    message = r"of the whole batch.*got grad, value_fn with every=2; use accumulate\(tx, every=1\)"
    with pytest.raises(ValueError, match=message):
        tx.update(W, tx.init(W), W, count=1, **given)
