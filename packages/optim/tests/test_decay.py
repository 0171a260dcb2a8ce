# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Weight decay against its closed forms, and against Optax's where that is the same."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dovetail_optim.matrix.decay import decay
from dovetail_optim.testing import check_transformation

RNG = np.random.default_rng(0)
PARAMS = {
    "a": {"kernel": RNG.standard_normal((3, 5)).astype(np.float32), "bias": np.ones(5, np.float32)},
    "b": {"kernel": RNG.standard_normal((5, 2)).astype(np.float32)},
}
STEPS = 20


def still(tx, params):
    """Parameters after steps of zero updates."""
    state = tx.init(params)
    zeros = jax.tree.map(jnp.zeros_like, params)

    @jax.jit
    def step(params, state):
        updates, state = tx.update(zeros, state, params)
        return optax.apply_updates(params, updates), state

    for _ in range(STEPS):
        params, state = step(params, state)
    return params


def close(found, expected):
    # Each of 20 steps rounds once, by 6e-8 of the value.
    np.testing.assert_allclose(found, expected, rtol=20 * 6e-8)


def test_independent_shrinks_by_its_rate_alone():
    found = still(decay(0.01), PARAMS)
    close(found["a"]["kernel"], 0.99**STEPS * PARAMS["a"]["kernel"].astype(np.float64))
    np.testing.assert_array_equal(found["a"]["bias"], PARAMS["a"]["bias"])


def test_independent_follows_its_schedule():
    found = still(decay(lambda step: 0.1 / (step.astype(jnp.float32) + 2), where="b.*"), PARAMS)
    factor = np.prod([1 - 0.1 / (t + 2) for t in range(STEPS)])
    close(found["b"]["kernel"], factor * PARAMS["b"]["kernel"].astype(np.float64))
    np.testing.assert_array_equal(found["a"]["kernel"], PARAMS["a"]["kernel"])


def test_coupled_shrinks_by_learning_rate_times_rate():
    schedule = lambda step: 0.3 / (step.astype(jnp.float32) + 1)  # noqa: E731
    tx = decay(0.1, mode="coupled", learning_rate=schedule, where="**")
    found = still(tx, PARAMS)
    factor = np.prod([1 - 0.03 / (t + 1) for t in range(STEPS)])
    close(found["a"]["bias"], factor * PARAMS["a"]["bias"].astype(np.float64))


@pytest.mark.thorough
def test_coupled_is_adamw():
    schedule = optax.linear_schedule(0.1, 0.01, STEPS)
    ours = optax.chain(
        optax.adam(schedule), decay(0.1, mode="coupled", learning_rate=schedule, where="**")
    )
    theirs = optax.adamw(schedule, weight_decay=0.1)
    rng = np.random.default_rng(1)
    params = [jax.tree.map(jnp.asarray, PARAMS)] * 2
    states = [ours.init(PARAMS), theirs.init(PARAMS)]
    for _ in range(STEPS):
        grads = jax.tree.map(lambda p: rng.standard_normal(p.shape).astype(np.float32), PARAMS)
        for i, tx in enumerate((ours, theirs)):
            with jax.numpy_dtype_promotion("standard"):  # Adam's bias correction needs it
                updates, states[i] = tx.update(grads, states[i], params[i])
            params[i] = optax.apply_updates(params[i], updates)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), *params)


def test_cautious_decays_where_it_agrees():
    p = np.array([2.0, 2.0, -2.0, -2.0, 2.0, 0.0, 1e-30], np.float32)
    u = np.array([0.5, -0.5, 0.5, -0.5, 0.0, 0.5, 1e-30], np.float32)
    tx = decay(0.1, mode="cautious", learning_rate=0.5, where="w")
    found, _ = tx.update({"w": jnp.asarray(u)}, tx.init({"w": p}), {"w": jnp.asarray(p)})
    shrink = np.float32(0.05) * p * np.array([0, 1, 1, 0, 1, 1, 0], np.float32)
    np.testing.assert_allclose(found["w"], u - shrink, rtol=1e-6)


def test_cautious_still_reaches_the_minimum():
    """Decay never against the step leaves the minimum of (p - 1)² as it is; coupled moves it."""

    def minimum(mode):
        tx = optax.chain(optax.sgd(0.1), decay(0.5, mode=mode, learning_rate=0.1, where="p"))
        params = {"p": jnp.asarray(0.0)}
        state = tx.init(params)
        for _ in range(200):
            updates, state = tx.update({"p": 2 * (params["p"] - 1)}, state, params)
            params = optax.apply_updates(params, updates)
        return float(params["p"])

    assert minimum("cautious") == pytest.approx(1, abs=1e-4)
    assert minimum("coupled") == pytest.approx(2 / 2.5, abs=1e-4)


def test_bfloat16_is_added_in_float32():
    p = jnp.asarray([1.0], jnp.bfloat16)
    u = jnp.asarray([-(2.0**-9)], jnp.bfloat16)
    tx = decay(2.0**-9, where="w")
    found, _ = tx.update({"w": u}, tx.init({"w": p}), {"w": p})
    assert found["w"].dtype == jnp.bfloat16
    assert float(found["w"][0]) == -(2.0**-8)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "dtype, tx",
    [
        (jnp.float32, decay(optax.linear_schedule(0.1, 0.0, 5), where="**.w")),
        (jnp.bfloat16, decay(0.1, mode="cautious", learning_rate=0.1, where="**")),
    ],
)
def test_contract(tx, dtype):
    check_transformation(tx, {"w": jnp.ones((3, 5), dtype), "v": jnp.ones(7, dtype)})


def test_nothing_named_is_an_error_with_the_nearest():
    message = r"pattern of where= must match a parameter, got '\*\*.kernal'.*'a.kernel'"
    tx = decay(0.1, where=("**.bias", "**.kernal"))
    with pytest.raises(ValueError, match=message):
        tx.init(PARAMS)
    with pytest.raises(ValueError, match=message):
        tx.update(PARAMS, decay(0.1).init(PARAMS), PARAMS)


def test_params_are_needed():
    tx = decay(0.1)
    with pytest.raises(ValueError, match=r"needs the parameters; got params=None; call update"):
        tx.update(PARAMS, tx.init(PARAMS))


@pytest.mark.parametrize(
    "arguments, got",
    [
        ({"mode": "coupled"}, r"learning_rate must be given.*mode='coupled', learning_rate=None"),
        ({"mode": "cautious"}, r"learning_rate must be given.*learning_rate=None; write the rate"),
        ({"learning_rate": 0.1}, r"and for no other; got mode='independent', learning_rate=0.1"),
        ({"rate": -0.1}, r"rate must be a number of at least 0, or a schedule.*got rate=-0.1; w"),
        ({"rate": float("nan")}, r"rate must be a number of at least 0.*got rate=nan"),
        ({"mode": "coupled", "learning_rate": -1.0}, r"learning_rate must be.*learning_rate=-1.0"),
        ({"mode": "l2"}, r"one of \['coupled', 'independent', 'cautious'\]; got 'l2'; write"),
    ],
)
def test_arguments_are_refused(arguments, got):
    with pytest.raises(ValueError, match=got):
        inspect.unwrap(decay)(**{"rate": 0.1, **arguments})
