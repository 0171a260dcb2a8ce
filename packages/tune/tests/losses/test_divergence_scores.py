# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_tune.losses.divergence_scores import divergence_score, power_score

RATIOS = np.array([-40.0, -3.0, -1e-3, 0.0, 1e-4, 0.7, 25.0], np.float32)


def _derivative(f, t):
    """f' at t by the complex step, which has no cancellation."""
    step = 1e-30 * t
    return f(t + 1j * step).imag / step


@pytest.mark.parametrize(
    ("divergence", "alpha", "f"),
    [
        # Table 1 of 2309.16240, up to terms that are constant in f'.
        ("reverse_kl", 0.5, lambda t: t * np.log(t) - t),
        ("forward_kl", 0.5, lambda t: t - np.log(t)),
        ("js_divergence", 0.5, lambda t: t * np.log(t) - (t + 1) * np.log((t + 1) / 2)),
        ("alpha_divergence", 0.5, lambda t: (t**0.5 / 0.5 - t) / -0.5),
        ("alpha_divergence", 1.7, lambda t: (t**1.7 / 1.7 - t) / 0.7),
    ],
)
def test_scores_are_the_derivative_of_f(divergence, alpha, f):
    ratios = RATIOS[(RATIOS > -30) & (RATIOS < 20)]  # t of float64
    wanted = _derivative(f, np.exp(ratios.astype(np.float64)))
    scores = divergence_score(jnp.asarray(ratios), divergence=divergence, alpha=alpha)
    # log 2 + log sigmoid cancels around 0, to an ulp of 0.7.
    np.testing.assert_allclose(scores, wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("alpha", "other"), [(1.0, "reverse_kl"), (0.0, "forward_kl")])
def test_limits_of_the_alpha_divergence(alpha, other):
    scores = divergence_score(jnp.asarray(RATIOS), divergence="alpha_divergence", alpha=alpha)
    wanted = divergence_score(jnp.asarray(RATIOS), divergence=other, alpha=alpha)
    np.testing.assert_array_equal(scores, wanted)
    near = divergence_score(jnp.asarray(RATIOS), divergence="alpha_divergence", alpha=alpha + 1e-6)
    np.testing.assert_allclose(near, wanted, rtol=1e-4)


def test_scores_are_constant_where_float32_ends():
    x = jnp.array([-79.0, -81.0, -1e4], jnp.float32)
    scores, pull = jax.vjp(lambda x: power_score(x, -1.0), x)
    np.testing.assert_allclose(scores, [-np.exp(79.0), -np.exp(80.0), -np.exp(80.0)], rtol=1e-5)
    (slopes,) = pull(jnp.array([1.0, jnp.inf, jnp.inf]))
    np.testing.assert_allclose(slopes, [np.exp(79.0), 0, 0], rtol=1e-5)
