# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_tune import losses

ROWS = 7
RNG = np.random.default_rng(0)
LOGPS, REF = (jnp.asarray(RNG.uniform(-40, -5, ROWS), jnp.float32) for _ in range(2))
DESIRABLE = jnp.array([True, False, False, True, True, False, True])
WEIGHTS = {"desirable_weight": 1.3, "undesirable_weight": 0.6}


def _sigmoid(x):
    return np.exp(-np.logaddexp(0.0, -x))


def _expected(logps, ref, desirable, *, beta, kl, kind, desirable_weight, undesirable_weight):
    """2402.01306, section 4.1, and 2408.06266, row by row in float64."""
    total = []
    for own, base, good in zip(np.float64(logps), np.float64(ref), desirable, strict=True):
        r = own - base
        if kind == "kto":
            value = _sigmoid(beta * (r - kl)) if good else _sigmoid(beta * (kl - r))
            loss = 1 - value
        else:
            loss = 1 - _sigmoid(beta * r) if good else _sigmoid(beta * r)
        total.append(loss * (desirable_weight if good else undesirable_weight))
    return np.array(total)


@pytest.mark.parametrize("kind", ["kto", "apo_zero_unpaired"])
@pytest.mark.parametrize("kl", [0.0, 4.5])
@pytest.mark.parametrize("beta", [0.1, 0.7])
def test_values_and_gradients_equal_float64(kind, kl, beta):
    options = {"beta": beta, "kl": kl, "kind": kind, **WEIGHTS}

    def total(logps):
        return losses.unpaired(logps, REF, DESIRABLE, **options).sum()

    values = losses.unpaired(
        jnp.asarray(LOGPS), jnp.asarray(REF), jnp.asarray(DESIRABLE), **options
    )
    # One sigmoid of float32; its argument of up to 25 is rounded to 2e-6.
    expected = _expected(LOGPS, REF, DESIRABLE, **options)
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-9)
    step = 1e-5
    above, below = (
        _expected(np.float64(LOGPS) + change, REF, DESIRABLE, **options) for change in (step, -step)
    )
    slope = (above - below) / (2 * step)  # each loss depends on its own row alone
    gradient = jax.grad(total)(LOGPS)
    # A central difference of float64: rounding of 1e-16 / 1e-5.
    np.testing.assert_allclose(gradient, slope, rtol=1e-4, atol=2e-11)
    assert (np.sign(gradient) == np.where(DESIRABLE, -1, 1)).all()


@pytest.mark.parametrize("kind", ["kto", "apo_zero_unpaired"])
def test_extreme_ratios_are_finite(kind):
    logps = jnp.array([-1e6, 1e6, -1e6, 1e6])
    desirable = jnp.array([True, True, False, False])

    def each(logps):
        return losses.unpaired(logps, jnp.zeros(4), desirable, beta=1.0, kind=kind)

    np.testing.assert_array_equal(each(logps), [1, 0, 0, 1])
    assert np.isfinite(jax.grad(lambda x: each(x).sum())(logps)).all()


def test_the_reference_point_has_no_gradient():
    def total(kl):
        return losses.unpaired(LOGPS, REF, DESIRABLE, kl=kl).sum()

    assert jax.grad(total)(jnp.float32(2.0)) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "bco"}, r"kind must be one of kto, apo_zero_unpaired, got kind='bco'; pass"),
        ({"beta": 0.0}, r"beta must be above 0, got beta=0.0; leave it out for 0.1"),
        ({"beta": float("nan")}, r"beta must be above 0, got beta=nan; leave"),
        ({"desirable_weight": -1.0}, r"desirable_weight must be at least 0, got .*=-1.0; leave"),
        ({"undesirable_weight": float("inf")}, r"undesirable_weight must .*, got .*=inf; leave"),
    ],
)
def test_options_out_of_range(options, message, unchecked):
    with pytest.raises(ValueError, match=message):
        losses.unpaired(jnp.zeros(2), jnp.zeros(2), jnp.array([True, False]), **options)
