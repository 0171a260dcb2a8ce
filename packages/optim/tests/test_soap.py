# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Against the algorithm of the paper, one matrix at a time in float64 NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dovetail_optim import soap
from dovetail_optim.testing import check_transformation

RNG = np.random.default_rng(0)
LAYERS, STEPS = 3, 20
ADAM = {"b1": 0.95, "b2": 0.95, "eps": 1e-8}


class Oracle:
    """One matrix; `turn` is its number, which says in which steps its bases are refreshed."""

    def __init__(self, w, *, turn=0, refresh=10, max_dim=99, weight_decay=0.0, **numbers):
        self.w = np.asarray(w, np.float64)
        self.m, self.v = np.zeros_like(self.w), np.zeros_like(self.w)
        self.grams = [np.zeros((n, n)) for n in self.w.shape]
        self.bases = [np.eye(n) for n in self.w.shape]
        self.turned = [n <= max_dim for n in self.w.shape]
        self.turn, self.refresh, self.rate, self.wd, self.t = turn, refresh, 1e-2, weight_decay, 0
        self.b1, self.b2, self.eps = (numbers.get(k, d) for k, d in ADAM.items())
        self.decay = numbers.get("basis_decay", 0.95)

    def step(self, g):
        g = np.asarray(g, np.float64)
        if self.t:
            ql, qr = self.bases
            self.m = self.b1 * self.m + (1 - self.b1) * g
            self.v = self.b2 * self.v + (1 - self.b2) * (ql.T @ g @ qr) ** 2
            fix1, fix2 = 1 - self.b1**self.t, 1 - self.b2**self.t
            adam = (ql.T @ self.m @ qr / fix1) / (np.sqrt(self.v / fix2) + self.eps)
            self.w = self.w - self.rate * (ql @ adam @ qr.T + self.wd * self.w)
        for i, product in enumerate((g @ g.T, g.T @ g)):
            if not self.turned[i]:
                continue
            self.grams[i] = self.decay * self.grams[i] + (1 - self.decay) * product
            if self.t == 0:
                self.bases[i] = np.linalg.eigh(self.grams[i])[1][:, ::-1]
            elif (self.turn - self.t) % self.refresh == 0:
                self.bases[i] = np.linalg.qr(self.grams[i] @ self.bases[i])[0]
        self.t += 1


def train(tx, params, grads):
    state, update = tx.init(params), jax.jit(tx.update)
    for g in grads:
        updates, state = update(g, state, params)
        params = optax.apply_updates(params, updates)
    return params, state


def gradients(params, steps=STEPS):
    """Of full rank and of several sizes, so that no two eigenvalues are near each other."""
    rng = np.random.default_rng(1)
    return [
        jax.tree.map(
            lambda p: jnp.asarray(
                rng.normal(size=p.shape) * 2.0 ** -np.arange(p.shape[-1]), jnp.float64
            ),
            params,
        )
        for _ in range(steps)
    ]


@pytest.mark.parametrize(
    "sizes, options",
    [
        # Square, or the long side unturned: a first gradient has as many eigenvectors as it is
        # wide on its short side, and the others are anyone's choice.
        ((5, 5), {}),
        ((5, 5), {"refresh": 1}),
        ((4, 6), {"refresh": 3, "max_dim": 4}),
        ((6, 4), {"refresh": 2, "max_dim": 5}),
        ((5, 5), {"b1": 0.9, "b2": 0.8, "eps": 0.01, "basis_decay": 0.7}),
    ],
)
def test_a_stack_is_the_papers_algorithm_for_each_matrix(sizes, options):
    with jax.enable_x64(True):
        params = jnp.asarray(RNG.normal(size=(sizes[0], LAYERS, sizes[1])))
        grads = gradients(params)
        tx = soap(1e-2, matrix="i l o -> l, i, o", weight_decay=0.1, **options)
        found, _ = train(tx, params, grads)
        for layer in range(LAYERS):
            right = Oracle(params[:, layer], turn=layer, weight_decay=0.1, **options)
            for g in grads:
                right.step(g[:, layer])
            # float64; the bases of two implementations of QR and eigh differ by signs alone.
            np.testing.assert_allclose(found[:, layer], right.w, rtol=1e-6, atol=1e-9)


def test_matrices_of_a_tree_take_turns():
    """Each leaf's number counts on: of 5 matrices and refresh=5 one is refreshed in every step."""
    with jax.enable_x64(True):
        params = {"a": RNG.normal(size=(2, 3, 4)), "b": RNG.normal(size=(3, 3, 4))}
        params = jax.tree.map(jnp.asarray, params)
        grads = gradients(params, 12)
        tx = soap(1e-2, matrix="l i o -> l, i, o", refresh=5)
        state, update = tx.init(params), jax.jit(tx.update)
        changed = []
        for g in grads:
            before = state
            _, state = update(g, state, params)
            moved = [
                np.abs(np.asarray(state.left[k] - before.left[k])).max((1, 2)) > 0 for k in "ab"
            ]
            changed.append(np.flatnonzero(np.concatenate(moved)).tolist())
        assert changed == [[0, 1, 2, 3, 4]] + [[i % 5] for i in range(1, 12)]


def test_float32_follows_float64():
    params = jnp.asarray(RNG.normal(size=(6, 6)), jnp.float32)
    with jax.enable_x64(True):
        grads = [np.asarray(g) for g in gradients(params)]
    right = Oracle(params)
    for g in grads:
        right.step(np.asarray(g, np.float32))
    found, state = train(soap(1e-2), params, [jnp.asarray(g, jnp.float32) for g in grads])
    # 20 steps of at most 1e-2; directions of small eigenvalues are known to fewer digits.
    np.testing.assert_allclose(found, right.w, atol=2e-3)
    vectors = np.asarray(state.left[0], np.float64)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(6), atol=1e-5)


def test_a_side_that_is_too_long_has_no_basis():
    params = jnp.ones((3, 9))
    state = soap(1e-2, max_dim=8).init(params)
    assert state.left.shape == (1, 3, 3)
    assert state.right is None


def test_a_rotated_problem_takes_rotated_steps():
    """What Adam is not: the bases turn with the problem (both sides, by orthogonal matrices)."""
    with jax.enable_x64(True):
        params = jnp.asarray(RNG.normal(size=(5, 5)))
        u, v = (np.linalg.qr(RNG.normal(size=(5, 5)))[0] for _ in range(2))
        grads = gradients(params, 6)
        plain, _ = train(soap(1e-2), params, grads)
        turned, _ = train(soap(1e-2), u @ params @ v, [u @ g @ v for g in grads])
        np.testing.assert_allclose(turned, u @ plain @ v, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_contract(dtype):
    params = {"a": jnp.asarray(RNG.normal(size=(3, 5)), dtype)}
    # The bases of one gradient of rank 3: where eigenvalues are 0, programs choose any vectors.
    check_transformation(soap(1e-3, refresh=2), params, tolerance=5e-3)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"b1": 1.0}, r"b1 must be in \[0, 1\); got b1=1.0; write b1=0.95"),
        ({"basis_decay": -0.1}, r"basis_decay must be in \[0, 1\); got basis_decay=-0.1; write"),
        ({"refresh": 0}, r"refresh must be at least 1; got refresh=0; write refresh=10"),
        ({"max_dim": 0}, r"max_dim must be at least 1; got max_dim=0; write"),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        soap(1e-2, **options)


def test_wrong_calls():
    with pytest.raises(ValueError, match=r"needs arrays of 2 axes; got 'w' of shape \(2, 3, 4\)"):
        soap(1e-2).init({"w": jnp.ones((2, 3, 4))})
    tx = soap(1e-2, weight_decay=0.1)
    with pytest.raises(ValueError, match=r"got params=None, weight_decay=0.1; call update"):
        tx.update(jnp.ones((2, 3)), tx.init(jnp.ones((2, 3))))


def test_on_eight_devices(on_eight_devices):
    on_eight_devices("soap_sharded.py")
