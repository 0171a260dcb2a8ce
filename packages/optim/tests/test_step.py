# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dovetail_optim import Guard, Step, guard, halted
from dovetail_optim.guarding.guard import REASONS

RNG = np.random.default_rng(0)
PARAMS = {"w": jnp.asarray(RNG.normal(size=(3, 5)), jnp.float32), "b": jnp.asarray([0.0, -0.0])}


def gradient(seed, size=1.0):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda p: jnp.asarray(size * rng.normal(size=p.shape), "f4"), PARAMS)


def bits(tree):
    return [np.array(x).tobytes() for x in jax.tree.leaves(tree)]


@pytest.mark.thorough
def test_a_step_is_update_and_application():
    tx, step = optax.adamw(1e-2), Step(optax.adamw(1e-2))
    run = jax.jit(step)
    params = theirs = PARAMS
    state, inner = step.init(PARAMS), tx.init(PARAMS)
    for i in range(4):
        params, state, info = run(params, state, gradient(i))
        updates, inner = jax.jit(tx.update)(gradient(i), inner, theirs)
        theirs = optax.apply_updates(theirs, updates)
        squares = [(np.asarray(g, np.float64) ** 2).sum() for g in jax.tree.leaves(gradient(i))]
        np.testing.assert_allclose(info.gradient_norm, np.sqrt(sum(squares)), rtol=1e-6)
        assert not info.skipped
    for ours, right in zip(jax.tree.leaves(params), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(ours, right, rtol=1e-6)


@pytest.mark.parametrize("at", [0, 3, 18])
def test_a_skipped_step_has_not_been(at):
    step = Step(optax.adamw(1e-2), guard=Guard(window=16, patience=2))
    run = jax.jit(step)
    params, state = PARAMS, step.init(PARAMS)
    for i in range(at):
        params, state, _ = run(params, state, gradient(i), loss=1.0)
    after, skipped, info = run(params, state, gradient(5, np.nan), loss=1.0)
    assert bits((after, skipped.inner)) == bits((params, state.inner))
    assert bool(info.skipped)
    assert REASONS[int(info.reason)] == "the gradient is not finite"
    _, _, info = run(params, state, gradient(5), loss=np.inf)
    assert REASONS[int(info.reason)] == "the loss is not finite"
    _, skipped, info = run(after, skipped, gradient(5, 1e6), loss=1.0)
    assert bool(info.skipped) == (at == 18)
    _, skipped, _ = run(after, skipped, gradient(5, np.nan), loss=1.0)
    assert (halted(skipped, patience=1) or "").startswith("the gradient is not finite")


@pytest.mark.thorough
def test_it_skips_what_the_transformation_skips():
    tx, step = guard(optax.sgd(0.1), window=16), Step(optax.sgd(0.1), guard=Guard(window=16))
    run, update = jax.jit(step), jax.jit(tx.update)
    params = theirs = PARAMS
    state, inner = step.init(PARAMS), tx.init(PARAMS)
    sizes = np.exp(np.random.default_rng(3).normal(size=40) * 0.3)
    sizes[[18, 30]] = 50, np.nan
    for i, size in enumerate(sizes):
        params, state, _ = run(params, state, gradient(i, size))
        updates, inner = update(gradient(i, size), inner, theirs)
        theirs = optax.apply_updates(theirs, updates)
    assert int(state.history.skipped) == int(inner.history.skipped) == 2
    for ours, right in zip(jax.tree.leaves(params), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(ours, right, rtol=1e-5, atol=1e-6)


def test_it_is_donated_and_compiled_once():
    step = Step(optax.adamw(1e-2), guard=Guard())
    run = jax.jit(step, donate_argnums=(0, 1))
    params, state = jax.tree.map(jnp.copy, PARAMS), step.init(PARAMS)
    for i in range(3):
        params, state, _ = run(params, state, gradient(i), loss=jnp.float32(1.0))
    assert run._cache_size() == 1


def test_the_transformation_is_given_the_loss_and_what_else_there_is():
    def update(updates, state, params=None, *, value, scale):
        return jax.tree.map(lambda g: scale * g, updates), jnp.asarray(value)

    tx = optax.GradientTransformationExtraArgs(lambda params: jnp.zeros(()), update)
    step = Step(tx)
    grads = gradient(0)
    params, state, _ = step(PARAMS, step.init(PARAMS), grads, loss=3.0, scale=2.0)
    assert float(state.inner) == 3.0
    np.testing.assert_allclose(params["w"], PARAMS["w"] + 2 * grads["w"], rtol=1e-6)
