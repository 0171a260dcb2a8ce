# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from dovetail_tune import losses


def _sigmoid(x):
    return np.exp(oracle.log_sigmoid(x))


@pytest.fixture(scope="module")
def scores():
    rng = np.random.default_rng(0)
    chosen, rejected, margin = rng.normal(size=(3, 11)) * [[9.0], [4.0], [1.0]]
    chosen[:2] = 150.0, -150.0
    return [x.astype(np.float32) for x in (chosen, rejected, margin)]


def test_bradley_terry_is_float64s_with_its_gradients(scores):
    chosen, rejected, margin = scores
    h = chosen.astype(np.float64) - rejected - margin
    values = losses.bradley_terry(*map(jnp.asarray, (chosen, rejected)), margin=jnp.asarray(margin))
    # Differences of scores up to 150 are rounded once, to 2^-17.
    np.testing.assert_allclose(values, -oracle.log_sigmoid(h), rtol=1e-6, atol=1e-6)

    def total(chosen, rejected, margin):
        return losses.bradley_terry(chosen, rejected, margin=margin).sum()

    gradients = jax.grad(total, argnums=(0, 1, 2))(*map(jnp.asarray, scores))
    slope = -_sigmoid(-h)
    for gradient, sign in zip(gradients, (1, -1, -1), strict=True):
        np.testing.assert_allclose(gradient, sign * slope, rtol=2e-5, atol=1e-7)


def test_a_margin_of_zero_is_the_default(scores):
    chosen, rejected = map(jnp.asarray, scores[:2])
    expected = -oracle.log_sigmoid(scores[0].astype(np.float64) - scores[1])
    # Of a difference of 20, rounded to 2^-20, the exponential has an error of 2^-20.
    values = losses.bradley_terry(chosen, rejected)
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-30)


def test_cross_entropy_of_soft_and_hard_labels(scores):
    score = scores[0]
    y = np.random.default_rng(1).uniform(size=score.shape).astype(np.float32)
    y[::3] = 0, 1, 1, 0
    expected = -(y * oracle.log_sigmoid(score) + (1.0 - y) * oracle.log_sigmoid(-score))
    args = jnp.asarray(score), jnp.asarray(y)
    np.testing.assert_allclose(losses.binary_cross_entropy(*args), expected, rtol=1e-6)
    slope = jax.grad(lambda *args: losses.binary_cross_entropy(*args).sum())(*args)
    np.testing.assert_allclose(slope, _sigmoid(score) - y, rtol=1e-5, atol=1e-7)


def test_centering_is_the_square_of_the_sum(scores):
    chosen, rejected, _ = scores
    expected = (chosen.astype(np.float64) + rejected) ** 2
    values = losses.centering(jnp.asarray(chosen), jnp.asarray(rejected))
    np.testing.assert_allclose(values, expected, rtol=1e-5)
