# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The losses as they are used: large vocabularies, transformations, meshes."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import forced_devices
import warm_start
from dovetail_kernels.loss.api import linear_cross_entropy, linear_logprobs

PROGRAM = Path(__file__).parents[1] / "programs" / "loss_sharded.py"
M, D, V = 37, 8, 300
rng = np.random.default_rng(2)
X, W = rng.standard_normal((M, D)).astype("f4"), rng.standard_normal((D, V)).astype("f4")
LABELS, WHERE = rng.integers(0, V, M).astype("i4"), (rng.random(M) < 0.6).astype("f4")


def loss(x, w, labels=LABELS, **options):
    return linear_cross_entropy(x, w, labels, where=WHERE, z_loss=0.01, **options).sum


def softmax64(x, w):
    z = x.astype(np.float64) @ w.astype(np.float64)
    lse = np.log(np.exp(z - z.max(1, keepdims=True)).sum(1)) + z.max(1)
    return z, lse, np.exp(z - lse[:, None])


@pytest.mark.thorough
@pytest.mark.capability("cross-entropy of a head without its logits in memory")
@pytest.mark.parametrize("vocabulary", [32000, 50257, 128256, 151936])
def test_vocabularies_of_models(vocabulary):
    """Most are no multiple of a tile. 1e-5 of the largest number, as sums are of 1e5 terms."""
    rng = np.random.default_rng(vocabulary)
    x, w = rng.standard_normal((5, 4)), rng.standard_normal((4, vocabulary))
    x, w, labels = x.astype("f4"), w.astype("f4"), rng.integers(0, vocabulary, 5).astype("i4")
    labels[0] = vocabulary - 1
    total = jax.jit(jax.value_and_grad(lambda x, w: linear_cross_entropy(x, w, labels).sum, (0, 1)))
    found, (dx, dw) = total(x, w)
    z, lse, p = softmax64(x, w)
    rows = np.arange(5)
    np.testing.assert_allclose(found, (lse - z[rows, labels]).sum(), rtol=1e-5)
    p[rows, labels] -= 1
    for got, expected in ((dx, p @ w.T.astype(np.float64)), (dw, x.T.astype(np.float64) @ p)):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@pytest.mark.thorough
@pytest.mark.parametrize("budget", [10**6, 60_000, 34_000])
def test_a_budget_changes_only_rounding(budget):
    """Epsilon times the V and M numbers of a sum."""
    plain = jax.value_and_grad(loss, (0, 1))(X, W)
    found = jax.jit(jax.value_and_grad(functools.partial(loss, budget=budget), (0, 1)))(X, W)
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(a, b, rtol=(V + M) * 2**-23, atol=1e-5)


def test_twice_is_the_same_bits():
    run = jax.jit(jax.value_and_grad(loss, (0, 1)))
    for a, b in zip(jax.tree.leaves(run(X, W)), jax.tree.leaves(run(X, W)), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.thorough
@pytest.mark.capability("cross-entropy of a head without its logits in memory")
def test_weights_have_a_gradient():
    """That of the sum is each token's loss, and 0 where it is not read."""
    weights = jnp.asarray(WHERE) * 1.5

    def mean(weights):
        found = linear_cross_entropy(X, W, LABELS, where=weights)
        return found.sum / found.count

    z, lse, _ = softmax64(X, W)
    nll = lse - z[np.arange(M), LABELS]
    total, count = (np.asarray(weights) * nll).sum(), np.asarray(weights).sum()
    expected = np.where(WHERE, nll, 0) / count - total / count**2
    np.testing.assert_allclose(jax.jit(jax.grad(mean))(weights), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.thorough
def test_vmap():
    """Over everything, and over x alone, which leaves w whole."""
    xs, ws = np.stack([X, X[::-1]]), np.stack([W, 2 * W])
    labels = np.stack([LABELS, LABELS[::-1]])
    each = jax.jit(jax.value_and_grad(loss, (0, 1)))
    many = jax.jit(jax.vmap(jax.value_and_grad(loss, (0, 1))))(xs, ws, labels)
    for i in range(2):
        one = each(xs[i], ws[i], labels[i])
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(many), strict=True):
            np.testing.assert_allclose(a, b[i], rtol=1e-5, atol=1e-5)
    shared = jax.jit(jax.grad(lambda w: jax.vmap(loss, (0, None, 0))(xs, w, labels).sum()))(W)
    parts = [each(xs[i], W, labels[i])[1][1] for i in range(2)]
    np.testing.assert_allclose(shared, sum(parts), rtol=1e-5, atol=1e-5)


@pytest.mark.thorough
def test_checkpoint_and_scan():
    plain = jax.grad(loss, (0, 1))(X, W)
    again = jax.jit(jax.grad(jax.checkpoint(loss), (0, 1)))(X, W)

    @jax.jit
    @functools.partial(jax.grad, argnums=(0, 1))
    def scanned(x, w):
        def step(total, scale):
            return total + scale * loss(x, w), None

        return jax.lax.scan(step, jnp.float32(0), jnp.asarray([0.25, 0.75]))[0]

    for found in (again, scanned(X, W)):
        for a, b in zip(plain, found, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("op", ["cross_entropy", "logprobs"])
def test_one_traced_function_differentiated_by_this_and_then_that(op):
    """Its forward rule runs again, with another set of gradients to form."""

    @jax.jit
    def inner(x, w):
        if op == "cross_entropy":
            return loss(x, w)
        return linear_logprobs(x, w, LABELS).logprob.sum()

    dx = jax.grad(inner, 0)(X, W)
    both = jax.jit(jax.grad(inner, (0, 1)))(X, W)
    dw = jax.jit(jax.grad(inner, 1))(X, W)
    np.testing.assert_allclose(dx, both[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(dw, both[1], rtol=1e-5, atol=1e-5)


@pytest.mark.thorough
def test_float64():
    """Under x64 to 1e-12, as sums are then in float64."""
    with jax.enable_x64(True):
        x, w = X.astype(np.float64), W.astype(np.float64)
        run = jax.jit(jax.value_and_grad(lambda x: linear_cross_entropy(x, w, LABELS).sum))
        found, dx = run(x)
        logprob, _ = linear_logprobs(x, w, LABELS)
        assert dx.dtype == logprob.dtype == np.float64
    z, lse, p = softmax64(x, w)
    rows = np.arange(M)
    np.testing.assert_allclose(found, (lse - z[rows, LABELS]).sum(), rtol=1e-12)
    np.testing.assert_allclose(logprob, z[rows, LABELS] - lse, rtol=1e-12)
    p[rows, LABELS] -= 1
    np.testing.assert_allclose(dx, p @ w.T, rtol=1e-10, atol=1e-12)


@pytest.mark.thorough
def test_arrays_of_numpy_in_float64_are_float32_without_x64():
    found = linear_cross_entropy(X.astype(np.float64), W.astype(np.float64), LABELS)
    assert found.sum.dtype == np.float32


@pytest.mark.thorough
def test_results_are_a_pytree():
    found = linear_cross_entropy(X, W, LABELS)
    assert [leaf.shape for leaf in jax.tree.leaves(found)] == [()] * 4
    assert linear_logprobs(X, W, LABELS)._fields == ("logprob", "entropy")


@pytest.mark.thorough
def test_eight_devices():
    done = warm_start.run([PROGRAM], env=forced_devices.environment(8, cached=True))
    assert done.stdout == "ok\n", done.stderr


@pytest.mark.slow
def test_more_logits_than_an_int32_counts():
    """2**31 logits and more: a flattened index would wrap round."""
    tokens, vocabulary = 14200, 151936
    assert tokens * vocabulary > 2**31
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((tokens, 1)), rng.standard_normal((1, vocabulary))
    x, w = x.astype("f4"), w.astype("f4")
    labels = rng.integers(0, vocabulary, tokens).astype("i4")
    found, dx = jax.jit(jax.value_and_grad(lambda x: linear_cross_entropy(x, w, labels).sum))(x)
    some = np.r_[0:3, tokens - 3 : tokens]
    _, _, p = softmax64(x[some], w)
    expected = (p @ w.T - w[:, labels[some]].T).astype(np.float64)
    np.testing.assert_allclose(dx[some], expected, rtol=1e-4, atol=1e-4)
    assert np.isfinite(found)
