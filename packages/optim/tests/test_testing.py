# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The contract accepts Optax's own transformations, and each check refuses what breaks it."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dovetail_optim.testing import check_transformation


class Count(NamedTuple):
    count: Any


PARAMS = {
    "w": np.random.default_rng(1).normal(size=(3, 5)).astype(np.float32),
    "b": np.random.default_rng(2).normal(size=7).astype(np.float32),
}


@pytest.mark.thorough
@pytest.mark.parametrize("tx", [optax.adamw(1e-2), optax.sgd(1e-2, momentum=0.9)])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_optax_keeps_the_contract(tx, dtype):
    check_transformation(tx, jax.tree.map(lambda x: jnp.asarray(x, dtype), PARAMS))


def broken(**changes):
    """Plain descent that breaks one promise."""

    def init(params):
        return Count(changes.get("start", jnp.zeros)(()))

    def update(updates, state, params=None):
        step = changes.get("step", lambda g, state: -0.1 * g)
        updates = jax.tree.map(lambda g: step(g, state), updates)
        return updates, Count(changes.get("count", lambda c: c + 1)(state.count))

    return optax.GradientTransformation(changes.get("init", init), update)


HOST = {"calls": 0}


def by_host(g, state):
    HOST["calls"] += 1
    return -0.1 * HOST["calls"] * g


@pytest.mark.parametrize(
    "tx, message",
    [
        (broken(count=lambda c: (c + 1).astype(jnp.int32)), "shapes or dtypes of the state"),
        (broken(step=lambda g, s: jnp.stack([g, g], -1)), "other shapes than the parameters"),
        (broken(step=by_host), "compiled: "),
        (broken(step=lambda g, s: g / jnp.abs(g).max()), "zero give a value that is not finite"),
        (
            optax.GradientTransformation(
                lambda params: jax.tree.leaves(params)[0] + 0, lambda g, s, p=None: (g, s)
            ),
            None,
        ),
    ],
)
def test_a_broken_promise_is_named(tx, message):
    error = AssertionError if message else IndexError  # the last cannot start on an empty tree
    with pytest.raises(error, match=message):
        check_transformation(tx, PARAMS)
