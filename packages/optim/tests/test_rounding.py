# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The mean of rounded values, their neighbours, and what follows from a seed."""

import math

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest

from dovetail_optim.compressing.rounding import round_at_random, stochastic_round
from dovetail_optim.testing import check_transformation


@pytest.fixture(autouse=True)
def _optax_promotes():
    """`optax.apply_updates` adds float32 to bfloat16."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def tree(seed, dtype=jnp.bfloat16):
    rng = np.random.default_rng(seed)
    return {
        "w": jnp.asarray(rng.standard_normal((5, 7)), dtype),
        "norm": jnp.asarray(rng.standard_normal(7), jnp.float32),
    }


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_it_keeps_the_contract(dtype):
    check_transformation(stochastic_round(optax.adamw(1e-2), seed=3), {"w": tree(0, dtype)["w"]})


def test_the_bits_choose_between_neighbours_in_proportion():
    """All 2¹⁶ values of the bits that count: exactly the fraction above goes up."""
    raw = np.random.default_rng(0).integers(0, 2**32, 50, dtype=np.uint32)
    x = raw.view(np.float32)
    x = x[np.isfinite(x) & (np.abs(x) < 3e38)]
    bits = jnp.arange(1 << 16, dtype=jnp.uint32) << 16
    rounded = jax.jit(jax.vmap(lambda v: round_at_random(jnp.full(bits.shape, v), bits)))
    out = np.asarray(rounded(jnp.asarray(x))).view(np.uint16)
    lower = x.view(np.uint32) >> 16
    up = out != lower[:, None]
    np.testing.assert_array_equal(out[up], np.repeat(lower + 1, up.sum(1)))
    np.testing.assert_array_equal(up.sum(1), x.view(np.uint32) & 0xFFFF)


def test_inf_and_nan_stay():
    x = jnp.asarray([np.inf, -np.inf, np.nan, -0.0], jnp.float32)
    out = np.asarray(round_at_random(x, jnp.full(4, 2**32 - 1, jnp.uint32)), np.float32)
    np.testing.assert_array_equal(out, np.asarray(x))
    assert np.signbit(out[3])
    others = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001], np.uint32).view(np.float32)
    assert np.isnan(round_at_random(jnp.asarray(others), jnp.zeros(3, jnp.uint32))).all()
    assert np.isnan(round_at_random(jnp.asarray(others), jnp.full(3, 2**32 - 1, jnp.uint32))).all()


def drift(seed, *, shape=(64, 64), steps=64, by=1e-4):
    """How far parameters near 1 come in steps of 1/40 of their last bit."""
    tx = stochastic_round(optax.sgd(1.0), seed=seed)
    start = jnp.full(shape, 1.0, jnp.bfloat16)
    grads = jnp.full(shape, -by, jnp.float32)

    def step(carry, _):
        p, state = carry
        updates, state = tx.update(grads, state, p)
        return (optax.apply_updates(p, updates), state), None

    (p, _), _ = jax.jit(lambda p: jax.lax.scan(step, (p, tx.init(p)), None, length=steps))(start)
    return np.asarray(p, np.float64) - 1.0


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1])
def test_the_mean_is_that_of_exact_steps(seed):
    """4096 walks of 64 steps, each up by 2⁻⁷ with probability 1e-4 · 2⁷: within 4 deviations."""
    moved, chance = drift(seed), 1e-4 * 2**7
    deviation = 2.0**-7 * np.sqrt(64 * chance * (1 - chance) / moved.size)
    assert abs(moved.mean() - 64e-4) < 4 * deviation
    # As many walks at each height as independent draws would have: no element repeats another.
    steps = np.rint(moved * 2**7).astype(int)
    for height in range(3):
        expected = math.comb(64, height)
        expected *= chance**height * (1 - chance) ** (64 - height) * moved.size
        assert abs((steps == height).sum() - expected) < 4 * np.sqrt(expected)


def test_neighbouring_elements_and_steps_are_independent():
    """Correlations of 2¹⁶ uniform draws, within 4 / sqrt(2¹⁶)."""
    from dovetail_optim.compressing.mix import mix

    index = jnp.arange(1 << 16, dtype=jnp.uint32)
    draws = [
        np.asarray(mix(index + shift, jnp.uint32(key)), np.float64)
        for shift, key in ((0, 0), (1, 0), (256, 0), (0, 1), (1, 1), (0, 2))
    ]
    correlation = np.corrcoef(draws) - np.eye(len(draws))
    assert np.abs(correlation).max() < 4 / 256
    for draw in draws:
        counts = np.bincount((draw // 2**24).astype(int), minlength=256)
        assert ((counts - 256) ** 2 / 256).sum() < 255 + 4 * np.sqrt(2 * 255)  # chi squared


def test_it_lands_on_a_neighbour_of_the_exact_step():
    """Of NumPy's p + u in float64: never further than one bfloat16 away."""
    tx = stochastic_round(optax.sgd(1.0), seed=0)
    params, grads = tree(0), tree(1)
    updates, _ = tx.update(grads, tx.init(params), params)
    moved = optax.apply_updates(params, updates)
    exact = np.asarray(params["w"], np.float64) - np.asarray(grads["w"], np.float64)
    down = exact.astype(np.float32).view(np.uint32) >> 16
    neighbours = [
        n.astype(np.uint16).view(ml_dtypes.bfloat16).astype(np.float64) for n in (down, down + 1)
    ]
    got = np.asarray(moved["w"], np.float64)
    assert ((got == neighbours[0]) | (got == neighbours[1])).all()
    np.testing.assert_array_equal(moved["norm"], params["norm"] - grads["norm"])
    assert updates["w"].dtype == jnp.float32


def test_a_seed_says_all():
    one, again, other = drift(7), drift(7), drift(8)
    np.testing.assert_array_equal(one, again)
    assert np.mean(one != other) > 0.3
    halves = drift(7, shape=(2, 64, 64))
    assert np.mean(halves[0] != halves[1]) > 0.3


@pytest.mark.thorough
def test_leaves_are_rounded_apart():
    tx = stochastic_round(optax.sgd(1.0), seed=0)
    p = {k: jnp.ones((32, 32), jnp.bfloat16) for k in "ab"}
    g = jax.tree.map(lambda x: jnp.full(x.shape, -(2.0**-8), jnp.float32), p)
    updates, _ = tx.update(g, tx.init(p), p)
    assert 0.3 < np.mean(np.asarray(updates["a"]) != np.asarray(updates["b"])) < 0.7


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"from 0 to 2\*\*32 - 1; got seed=-1; write seed=0"):
        stochastic_round(optax.sgd(1.0), seed=-1)
    tx = stochastic_round(optax.sgd(1.0), seed=0)
    with pytest.raises(TypeError, match=r"bfloat16, and.*'w' of float16; write params\.astype"):
        tx.init({"w": jnp.ones(3, jnp.float16)})
    p = jnp.ones(3, jnp.bfloat16)
    with pytest.raises(ValueError, match=r"needs the parameters.*params=None; write tx\.update"):
        tx.update(p, tx.init(p))
