# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np

from dovetail_tune import Metric
from dovetail_tune.objectives.pair_terms import nll_term, pair_metrics, pair_term
from dovetail_tune.rows import Pair

LOSSES = jnp.array([1.0, 2.0, jnp.nan, 4.0])
WHERE = jnp.array([True, True, False, True])
INTACT = jnp.ones(4, bool)


def test_pairs_that_do_not_count_are_not_read():
    total, count = pair_term(LOSSES, intact=INTACT, where=WHERE, weight=0.5)
    assert (float(total), float(count)) == (3.5, 3.0)
    tokens = jnp.array([3.0, 1.0, 7.0, 2.0])
    total, count = nll_term(-LOSSES, tokens, intact=INTACT, where=WHERE, weight=2.0)
    assert (float(total), float(count)) == (14.0, 6.0)


def test_torn_pairs_that_count_are_nan():
    torn = INTACT.at[1].set(False)
    assert np.isnan(pair_term(LOSSES, intact=torn, where=WHERE)[0])
    assert np.isnan(nll_term(LOSSES, LOSSES, intact=torn, where=WHERE)[0])
    torn = INTACT.at[2].set(False)
    assert np.isfinite(pair_term(LOSSES, intact=torn, where=WHERE)[0])


def test_metrics():
    rewards = Pair(jnp.array([1.0, 2.0, 9.0, 5.0]), jnp.array([1.0, 3.0, 0.0, 1.5]))
    logps = Pair(-LOSSES, -2 * LOSSES)
    metrics = pair_metrics(rewards, logps, WHERE)
    assert all(isinstance(metric, Metric) for metric in metrics.values())
    sums = {name: float(metric.sum) for name, metric in metrics.items()}
    assert sums == {
        "reward_chosen": 8.0,
        "reward_rejected": 5.5,
        "margin": 2.5,
        "accuracy": 1.0,  # a tie is wrong
        "logps_chosen": -7.0,
        "logps_rejected": -14.0,
    }
    assert {float(metric.count) for metric in metrics.values()} == {3.0}
    slopes = jax.grad(lambda x: pair_metrics(Pair(x, x), logps, WHERE)["reward_chosen"].sum)(LOSSES)
    np.testing.assert_array_equal(slopes, 0)
