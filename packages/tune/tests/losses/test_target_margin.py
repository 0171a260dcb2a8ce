# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pair_oracle
import pytest

from dovetail_tune.losses import target_margin


@pytest.mark.parametrize("alpha", [0.0, 0.25, -0.5])
def test_losses_and_gradients_equal_float64(alpha):
    answers = -np.random.default_rng(0).uniform(0.1, 6, (2, 7)).astype(np.float32)
    options = {"beta": 2.5, "gamma": 0.3, "alpha": alpha}

    def total(answers):
        losses = target_margin(*answers, **options)
        return losses.sum(), losses

    (_, losses), slopes = jax.jit(jax.value_and_grad(total, has_aux=True))(answers)
    exact = functools.partial(pair_oracle.target_margin, **options)
    np.testing.assert_allclose(losses, exact(answers), rtol=1e-5)
    wanted = pair_oracle.gradient(exact, answers, step=1e-6)
    np.testing.assert_allclose(slopes, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("alpha", [0.0, 0.25])
def test_extreme_answers_have_finite_losses_and_gradients(alpha):
    def total(answers):
        losses = target_margin(*answers, alpha=alpha)
        return losses.sum(), losses

    answers = jnp.array([[-1e3, -1e3, 0.0], [0.0, -1e3, -1e3]])
    (_, losses), slopes = jax.value_and_grad(total, has_aux=True)(answers)
    assert np.isfinite(losses).all()
    assert np.isfinite(slopes).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta": 0.0}, r"beta must be above 0 and finite, got beta=0.0; pass for example beta=2"),
        ({"gamma": -0.1}, r"gamma must be at least 0 and finite, got gamma=-0.1; pass .*gamma=1"),
        ({"alpha": float("nan")}, r"alpha must be finite, got alpha=nan; pass .*alpha=0"),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        target_margin(jnp.zeros(1), jnp.zeros(1), **options)
