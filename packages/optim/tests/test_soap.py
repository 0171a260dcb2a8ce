# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Against the algorithm of the paper and its authors, one matrix at a time in float64 NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dovetail_optim import soap
from dovetail_optim.testing import check_transformation

RNG = np.random.default_rng(0)
STEPS, LONG = 20, 400
ADAM = {"b1": 0.95, "b2": 0.95, "eps": 1e-8}


class Oracle:
    """One matrix; `turn` is its number, which says in which steps its bases are refreshed.

    A refresh sorts a basis by estimated eigenvalue, and V with it, before power iteration and QR.
    """

    def __init__(self, w, *, turn=0, refresh=10, max_dim=99, weight_decay=0.0, **numbers):
        self.w = np.asarray(w, np.float64)
        self.m, self.v = np.zeros_like(self.w), np.zeros_like(self.w)
        self.grams = [np.zeros((n, n)) for n in self.w.shape]
        self.bases = [np.eye(n) for n in self.w.shape]
        self.turned = [n <= max_dim for n in self.w.shape]
        self.turn, self.refresh, self.rate, self.wd, self.t = turn, refresh, 1e-2, weight_decay, 0
        self.b1, self.b2, self.eps = (numbers.get(k, d) for k, d in ADAM.items())
        self.decay = numbers.get("basis_decay", 0.95)
        self.reordered = 0

    def step(self, g, first=(None, None)):
        """`first`: bases to begin with, if they are eigenvectors of the first products."""
        g = np.asarray(g, np.float64)
        if self.t:
            self.move(g)
        for i, product in enumerate((g @ g.T, g.T @ g)):
            if not self.turned[i]:
                continue
            self.grams[i] = self.decay * self.grams[i] + (1 - self.decay) * product
            if self.t == 0:
                self.begin(i, first[i])
            elif (self.turn - self.t) % self.refresh == 0:
                estimates = np.diag(self.bases[i].T @ self.grams[i] @ self.bases[i])
                order = np.argsort(-estimates)
                self.reordered += bool((np.diff(order) < 0).any())
                self.v = np.take(self.v, order, axis=i)
                self.bases[i] = np.linalg.qr(self.grams[i] @ self.bases[i][:, order])[0]
        self.t += 1

    def move(self, g):
        ql, qr = self.bases
        self.m = self.b1 * self.m + (1 - self.b1) * g
        self.v = self.b2 * self.v + (1 - self.b2) * (ql.T @ g @ qr) ** 2
        fix1, fix2 = 1 - self.b1**self.t, 1 - self.b2**self.t
        adam = (ql.T @ self.m @ qr / fix1) / (np.sqrt(self.v / fix2) + self.eps)
        self.w = self.w - self.rate * (ql @ adam @ qr.T + self.wd * self.w)

    def begin(self, i, given):
        values, vectors = np.linalg.eigh(self.grams[i])
        self.bases[i] = vectors[:, ::-1]
        if given is not None:
            # Of a null space any basis serves.
            given = np.asarray(given)
            np.testing.assert_allclose(given.T @ given, np.eye(len(given)), atol=1e-12)
            diagonal = given.T @ self.grams[i] @ given / values[-1]
            np.testing.assert_allclose(diagonal, np.diag(values[::-1] / values[-1]), atol=1e-12)
            self.bases[i] = given


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


def moving(rng, rows, columns, *, rank, drifts):
    """400 gradients. If it drifts, the covariances turn and their eigenvalues trade places."""

    def root(n):
        skew = np.triu(rng.normal(size=(n, n)), 1) * 0.01
        skew = skew - skew.T
        turn = np.linalg.solve(np.eye(n) + skew, np.eye(n) - skew)  # orthogonal, by Cayley
        basis, phase = np.linalg.qr(rng.normal(size=(n, n)))[0], rng.uniform(0, 6, n)
        for t in range(LONG):
            yield basis * 2.0 ** (2 * np.sin(phase + drifts * t / 30))
            basis = turn @ basis if drifts else basis

    for left, right in zip(root(rows), root(columns), strict=True):
        inner = rng.normal(size=(rows, rank)) @ rng.normal(size=(rank, columns))
        yield left @ inner @ right.T


# Shape, axis string, matrices by hand, and rank of the gradients.
FORMS = {
    "heads": ((2, 4, 2, 3), "l i h d -> l, i, h d", lambda x: x.reshape(2, 4, 6), 4),
    "layers": ((3, 4, 5), "l i o -> l, i, o", lambda x: x, 4),
    "middle": ((5, 2, 5), "i l o -> l, i, o", lambda x: x.swapaxes(0, 1), 5),
    "one": ((5, 5), "i o -> , i, o", lambda x: x[None], 1),
    "row": ((1, 6), "i o -> , i, o", lambda x: x[None], 1),
    "tall": ((7, 4), "i o -> , i, o", lambda x: x[None], 4),
    "two": ((4, 6), "i o -> , i, o", lambda x: x[None], 2),
}


def drawn(names, rng, *, drifts):
    """Parameters, and the gradients of 400 steps, stacked."""
    params = {name: rng.normal(size=FORMS[name][0]) for name in names}
    grads = {name: np.zeros((LONG, *x.shape)) for name, x in params.items()}
    for name in names:
        _, _, fold, rank = FORMS[name]
        views = [fold(g) for g in grads[name]]
        for i, matrix in enumerate(views[0]):
            series = moving(rng, *matrix.shape, rank=rank, drifts=drifts)
            for view, g in zip(views, series, strict=True):
                view[i] = g
    return params, grads


@pytest.mark.capability("SOAP")
@pytest.mark.parametrize(
    "names, options",
    [
        (tuple(FORMS), {}),
        # Refreshed as early as this, products of rank 1 or 2 would not span a basis.
        (("heads", "layers", "middle", "tall"), {"refresh": 3, "max_dim": 5}),
        (("middle",), {"refresh": 1, "b1": 0.9, "b2": 0.8, "eps": 0.01, "basis_decay": 0.7}),
    ],
)
def test_is_the_authors_algorithm_for_each_matrix(names, options):
    """For 400 steps, of covariances that stay and that drift."""
    tx = soap(1e-2, matrix=[(k, FORMS[k][1]) for k in names], weight_decay=0.1, **options)

    def step(carry, grads):
        params, state = carry
        updates, state = tx.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), (state.left, state.right)

    run = jax.jit(lambda params, grads: jax.lax.scan(step, (params, tx.init(params)), grads))
    with jax.enable_x64(True):
        for drifts in (False, True):
            params, grads = drawn(names, np.random.default_rng(1), drifts=drifts)
            (moved, state), bases = jax.device_get(run(params, grads))
            turn, reordered = 0, 0
            for name in names:
                fold = FORMS[name][2]
                for i, w in enumerate(fold(params[name])):
                    sides = [b[name] if b[name] is None else b[name][:, i] for b in bases]
                    right = Oracle(w, turn=turn, weight_decay=0.1, **options)
                    right.step(fold(grads[name][0])[i], [b if b is None else b[0] for b in sides])
                    for g in grads[name][1:]:
                        right.step(fold(g)[i])
                    left_at, right_at = (
                        np.eye(len(b)) if s is None else np.round(np.abs(b.T @ s[-1]))
                        for b, s in zip(right.bases, sides, strict=True)
                    )
                    # float64; two implementations of QR differ by signs and roundings.
                    close = functools.partial(
                        np.testing.assert_allclose, rtol=1e-6, err_msg=f"{name} {i} {drifts}"
                    )
                    close(fold(moved[name])[i], right.w, atol=1e-9)
                    # Ours leaves columns in their places, where the authors' code sorts them.
                    close(fold(state.nu[name])[i], left_at.T @ right.v @ right_at)
                    turn, reordered = turn + 1, reordered + right.reordered
            assert reordered > LONG / 10


def test_the_order_of_columns_is_of_no_consequence():
    """So a state saved before the columns were sorted goes on, sorted from its next refresh."""
    with jax.enable_x64(True):
        params = jnp.asarray(RNG.normal(size=(5, 5)))
        grads = gradients(params)
        tx = soap(1e-2, refresh=2)
        _, state = train(tx, params, grads[:9])
        i, j = (RNG.permutation(5) for _ in range(2))
        other = state._replace(
            left=state.left[:, :, i], right=state.right[:, :, j], nu=state.nu[i][:, j]
        )
        update = jax.jit(tx.update)
        for g in grads[9:]:
            (right, state), (found, other) = update(g, state), update(g, other)
            np.testing.assert_allclose(found, right, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(other.nu, state.nu[i][:, j], rtol=1e-6)


@pytest.mark.thorough
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


@pytest.mark.thorough
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


def test_the_rate_of_the_next_update_is_told_of_its_own_state_alone():
    tx = soap(optax.linear_schedule(0.4, 0.0, 4))
    state = tx.init({"w": jnp.ones((3, 2))})
    own = tx.update.__self__
    np.testing.assert_allclose(own.learning_rate_of(state._replace(step=jnp.int32(3))), 0.1)
    assert own.learning_rate_of(optax.sgd(0.1).init(())) is None


def test_a_side_that_is_too_long_has_no_basis():
    params = jnp.ones((3, 9))
    state = soap(1e-2, max_dim=8).init(params)
    assert state.left.shape == (1, 3, 3)
    assert state.right is None


@pytest.mark.thorough
def test_a_rotated_problem_takes_rotated_steps():
    """What Adam is not: the bases turn with the problem (both sides, by orthogonal matrices)."""
    with jax.enable_x64(True):
        params = jnp.asarray(RNG.normal(size=(5, 5)))
        u, v = (np.linalg.qr(RNG.normal(size=(5, 5)))[0] for _ in range(2))
        grads = gradients(params, 6)
        plain, _ = train(soap(1e-2), params, grads)
        turned, _ = train(soap(1e-2), u @ params @ v, [u @ g @ v for g in grads])
        np.testing.assert_allclose(turned, u @ plain @ v, rtol=1e-6, atol=1e-9)


@pytest.mark.thorough
@pytest.mark.capability("SOAP")
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
    with pytest.raises(ValueError, match=r"got 'b' of shape \(3,\); give it another rule of route"):
        soap(1e-2).init({"b": jnp.ones(3)})
    tx = soap(1e-2, weight_decay=0.1)
    with pytest.raises(ValueError, match=r"got params=None, weight_decay=0.1; call update"):
        tx.update(jnp.ones((2, 3)), tx.init(jnp.ones((2, 3))))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "meshes", [["explicit"], pytest.param(["auto", "mixed"], marks=pytest.mark.slow)], ids=" ".join
)
def test_on_eight_devices(on_eight_devices, meshes):
    on_eight_devices("soap_sharded.py", *meshes)
