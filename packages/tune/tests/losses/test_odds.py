# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import pair_oracle
import pytest

from dovetail_tune.losses import odds_ratio
from dovetail_tune.losses.odds import log1mexp

X = -np.array([1e-7, 1e-6, 1e-3, 0.1, 0.6931, 0.6932, 2, 30, 90, 1e4], np.float32)


@pytest.mark.thorough
def test_log1mexp_and_its_slope_equal_float64():
    exact = np.asarray(X, np.float64)
    with np.errstate(over="ignore"):  # exp(1e4), whose inverse is 0
        values, slopes = np.log1p(-np.exp(exact)), -1 / np.expm1(-exact)
    # Two roundings of float32; float64 loses 9 of its 16 digits at -1e-7.
    np.testing.assert_allclose(log1mexp(X), values, rtol=1e-6, atol=1e-37)
    np.testing.assert_allclose(jax.vmap(jax.grad(log1mexp))(X), slopes, rtol=1e-5, atol=1e-37)


def test_certain_answers_have_finite_values_and_no_slope():
    x = jnp.array([0.0, -0.0, -1e-8, 1e-6])  # float32 rounds a mean of log-probabilities beyond 0
    np.testing.assert_allclose(log1mexp(x), np.log(2.0**-24) * np.ones(4), rtol=1e-6)
    np.testing.assert_array_equal(jax.vmap(jax.grad(log1mexp))(x), 0)


def test_losses_and_gradients_equal_float64():
    rng = np.random.default_rng(0)
    answers = -np.exp(rng.uniform(-6, 4, (2, 9))).astype(np.float32)

    def total(answers):
        losses = odds_ratio(*answers)
        return losses.sum(), losses

    (_, losses), slopes = jax.jit(jax.value_and_grad(total, has_aux=True))(answers)
    np.testing.assert_allclose(losses, pair_oracle.odds_ratio(answers), rtol=2e-5, atol=1e-7)
    wanted = pair_oracle.gradient(pair_oracle.odds_ratio, answers, step=1e-7)
    np.testing.assert_allclose(slopes, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("chosen", [0.0, -1e-9, -1e4])
@pytest.mark.parametrize("rejected", [0.0, -1e-9, -1e4])
def test_extreme_answers_have_finite_losses_and_gradients(chosen, rejected):
    def total(answers):
        return odds_ratio(*answers).sum()

    value, slopes = jax.value_and_grad(total)(jnp.array([[chosen], [rejected]], jnp.float32))
    assert np.isfinite(value)
    assert np.isfinite(slopes).all()


def test_seeds_are_a_batch_axis():
    stacked = -np.random.default_rng(1).uniform(0.1, 5, (3, 2, 4)).astype(np.float32)
    losses = jax.vmap(lambda answers: odds_ratio(*answers))(stacked)
    for answers, own in zip(stacked, losses, strict=True):
        np.testing.assert_allclose(own, pair_oracle.odds_ratio(answers), rtol=2e-5)
