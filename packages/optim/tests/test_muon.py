# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Muon against its formulas in float64, against Optax's, and what a matrix string changes."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from dovetail_optim.matrix.muon import muon
from dovetail_optim.route import route
from dovetail_optim.testing import check_transformation

STEPS = 20
SHAPES = {"wide": (4, 7), "tall": (9, 3), "square": (5, 5)}


def draw(seed, shapes=SHAPES):
    rng = np.random.default_rng(seed)
    return {k: rng.standard_normal(s).astype(np.float32) for k, s in shapes.items()}


def train(tx, shapes=SHAPES, steps=STEPS, seed=1):
    params = jax.tree.map(jnp.asarray, draw(0, shapes))
    state = tx.init(params)

    @jax.jit
    def step(params, state, grads):
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    for i in range(steps):
        params, state = step(params, state, draw(seed + i, shapes))
    return params


def polar(x):
    u, _, v = np.linalg.svd(x, full_matrices=False)
    return u @ v


def jordan(x):
    u, s, v = np.linalg.svd(x / np.linalg.norm(x), full_matrices=False)
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return (u * s) @ v


SCALES = {
    "spectral": lambda i, o: max(1, o / i) ** 0.5,
    "rms": lambda i, o: 0.2 * max(i, o) ** 0.5,
    "width": lambda i, o: (o / i) ** 0.5,
}


def oracle(rate, *, orthogonal, scale, nesterov, momentum=0.95, decay=None):
    """The formulas of the file's head, one matrix at a time, in float64."""
    params = {k: p.astype(np.float64) for k, p in draw(0).items()}
    average = {k: np.zeros_like(p) for k, p in params.items()}
    for t in range(STEPS):
        for k, g in draw(1 + t).items():
            average[k] = momentum * average[k] + (1 - momentum) * g
            ahead = momentum * average[k] + (1 - momentum) * g if nesterov else average[k]
            step = -rate(t) * SCALES[scale](*g.shape) * orthogonal(ahead)
            params[k] = params[k] + step - (0 if decay is None else decay(t, step, params[k]))
    return params


def same(found, expected, atol):
    for k, x in expected.items():
        np.testing.assert_allclose(found[k], x, atol=atol, err_msg=k)


@pytest.mark.capability("Muon")
@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("scale", list(SCALES))
def test_the_formulas(scale, nesterov):
    tx = muon(0.02, scale=scale, nesterov=nesterov, dtype=jnp.float32)
    expected = oracle(lambda t: 0.02, orthogonal=jordan, scale=scale, nesterov=nesterov)
    # Steps of 0.02 times at most 1.6, 20 of them, each wrong by 485 times 6e-8 (the slope of the
    # polynomials at 0) beside what rounding of the momentum gives.
    same(train(tx), expected, atol=1e-4)


@pytest.mark.parametrize("mode", ["coupled", "independent", "cautious"])
def test_schedules_and_decay(mode):
    rate = optax.linear_schedule(0.1, 0.0, STEPS)
    tx = muon(rate, ns="exact", dtype=jnp.float32, weight_decay=0.1, decay=mode, momentum=0.5)

    def eta(t):
        return 0.1 * (1 - t / STEPS)

    def shrink(t, step, p):
        amount = 0.1 if mode == "independent" else 0.1 * eta(t)
        return amount * p * (np.sign(step) * np.sign(p) <= 0 if mode == "cautious" else 1)

    expected = oracle(
        eta, orthogonal=polar, scale="spectral", nesterov=True, momentum=0.5, decay=shrink
    )
    # A polar factor moves by what the momentum does over its smallest singular value, about 0.1.
    same(train(tx), expected, atol=2e-4)


@pytest.mark.thorough
def test_optax_agrees_without_nesterov():
    """With it, Optax corrects the bias of momentum and gradient apart: another mean of the two."""
    theirs = optax.contrib.muon(0.02, nesterov=False, weight_decay=0.1)
    ours = muon(0.02, nesterov=False, weight_decay=0.1, dtype=jnp.float32)
    with jax.numpy_dtype_promotion("standard"):
        expected = train(theirs)
    same(train(ours), expected, atol=1e-4)
    with jax.numpy_dtype_promotion("standard"):
        expected = train(optax.contrib.muon(0.02, nesterov=False, consistent_rms=0.2))
    same(train(muon(0.02, nesterov=False, scale="rms", dtype=jnp.float32)), expected, atol=1e-4)


@pytest.mark.thorough
def test_bfloat16_iterations_stay_near():
    found, expected = train(muon(0.02)), train(muon(0.02, dtype=jnp.float32))
    for k in SHAPES:
        moved = np.asarray(expected[k]) - draw(0)[k]
        # Singular values err by up to 485 times 2^-9 where the matrix is small, a few per cent
        # where it counts; 20 steps average.
        assert np.linalg.norm(found[k] - expected[k]) < 0.1 * np.linalg.norm(moved)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "shape, matrix, single",
    [
        ((3, 4, 7), "l i o -> l, i, o", lambda x: list(x)),
        ((4, 3, 5), "i h d -> h, i, d", lambda x: list(x.transpose(1, 0, 2))),
        ((2, 3, 6), "h d o -> , h d, o", lambda x: [x.reshape(6, 6)]),
    ],
)
def test_a_stack_is_a_loop(shape, matrix, single):
    """Layers and heads move as matrices of their own do, and joined axes as one."""
    together = train(muon(0.1, matrix=matrix, scale="width", dtype=jnp.float32), {"w": shape}, 3)
    rng = [draw(seed, {"w": shape})["w"] for seed in range(4)]
    tx = muon(0.1, scale="width", dtype=jnp.float32)
    for i, alone in enumerate(zip(*map(single, rng), strict=True)):
        params, state = jnp.asarray(alone[0]), tx.init(jnp.asarray(alone[0]))
        for g in alone[1:]:
            updates, state = tx.update(jnp.asarray(g), state, params)
            params = params + updates
        np.testing.assert_allclose(single(np.asarray(together["w"]))[i], params, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("shape", [(6, 20), (20, 6), (12, 12)])
def test_the_size_of_an_update(shape):
    u, _, v = np.linalg.svd(draw(5, {"w": shape})["w"], full_matrices=False)
    grads = {"w": jnp.asarray((u * np.geomspace(1, 0.1, min(shape))) @ v, jnp.float32)}
    fan_in, fan_out = shape

    def update(scale):
        tx = muon(1.0, scale=scale, ns="exact", dtype=jnp.float32)
        return np.asarray(tx.update(grads, tx.init(grads))[0]["w"], np.float64)

    # Of an orthogonal matrix all min(in, out) singular values are 1.
    rms = np.sqrt(np.mean(update("rms") ** 2))
    assert rms == pytest.approx(0.2, rel=1e-4)
    largest = np.linalg.svd(update("spectral"), compute_uv=False)[0]
    assert largest == pytest.approx(max(1, fan_out / fan_in) ** 0.5, rel=1e-4)
    # The largest root mean square that comes out for one of 1 that goes in.
    gain = np.linalg.svd(update("width"), compute_uv=False)[0] * (fan_in / fan_out) ** 0.5
    assert gain == pytest.approx(1, rel=1e-4)


@pytest.mark.thorough
@pytest.mark.capability("Muon")
@pytest.mark.parametrize("dtype, decay", [(jnp.float32, "coupled"), (jnp.bfloat16, "cautious")])
def test_contract(dtype, decay):
    params = {"a": jnp.ones((3, 5), dtype), "b": (jnp.ones((5, 3), dtype),)}
    rows = [(1.5, -0.5, 0.0)]  # few, as the compiler's time is the test's
    schedule = optax.linear_schedule(0.1, 0.05, 4)
    tx = muon(schedule, weight_decay=0.1, decay=decay, ns=rows, dtype=jnp.float32)
    check_transformation(tx, params)


@pytest.mark.slow
def test_contract_with_bfloat16_iterations():
    # Compiled or not decides where bfloat16 is rounded: 0.01 of a step of 0.1, four times.
    params = {"a": jnp.asarray(draw(0)["wide"])}
    check_transformation(muon(0.1), params, tolerance=0.03)


def test_the_state_of_bfloat16_is_float32():
    params = {"w": jnp.ones((3, 4), jnp.bfloat16)}
    tx = muon(0.1)
    state = tx.init(params)
    updates, after = tx.update(params, state, params)
    assert state.momentum["w"].dtype == after.momentum["w"].dtype == jnp.float32
    assert updates["w"].dtype == jnp.bfloat16
    assert len(jax.tree.leaves(state)) == 2


@pytest.mark.thorough
def test_float64_stays():
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        params = {"w": jnp.asarray(rng.standard_normal((3, 4)))}
        tx = muon(optax.constant_schedule(0.1), ns="exact", dtype=jnp.float64, weight_decay=0.1)
        updates, state = tx.update(params, tx.init(params), params)
        assert updates["w"].dtype == state.momentum["w"].dtype == jnp.float64
        w = np.asarray(params["w"])
        expected = -0.1 * (4 / 3) ** 0.5 * polar(w) - 0.01 * w
        np.testing.assert_allclose(updates["w"], expected, atol=1e-8)  # a float32 schedule


@pytest.mark.thorough
def test_an_nnx_model_trains_by_route():
    model = nnx.Sequential(nnx.Linear(8, 16, rngs=nnx.Rngs(0)), nnx.Linear(16, 1, rngs=nnx.Rngs(1)))
    rules = [("layers.0.kernel", muon(0.05)), ("**", optax.sgd(0.05))]
    opt = nnx.Optimizer(model, route(rules), wrt=nnx.Param)
    x = jnp.asarray(draw(0, {"x": (32, 8)})["x"])

    @nnx.jit
    def step(model, opt):
        loss = lambda m: jnp.mean((m(x) - x.sum(1, keepdims=True)) ** 2)  # noqa: E731
        value, grads = nnx.value_and_grad(loss)(model)
        opt.update(model, grads)
        return value

    losses = [float(step(model, opt)) for _ in range(30)]
    assert losses[-1] < 0.3 * losses[0]


@pytest.mark.thorough
def test_a_new_setting_wins_over_a_restored_state():
    params = {"w": jnp.asarray(draw(0)["wide"])}
    old, new = muon(0.1, ns="jordan"), muon(optax.constant_schedule(0.3), ns="exact")
    assert jax.tree.structure(old.init(params)) == jax.tree.structure(new.init(params))
    _, state = old.update(params, old.init(params), params)
    fresh, _ = new.update(params, state, params)
    largest = np.linalg.svd(np.asarray(fresh["w"]), compute_uv=False)[0]
    assert largest == pytest.approx(0.3 * (7 / 4) ** 0.5, rel=0.02)  # bfloat16


def test_a_stack_without_a_string_is_refused_by_name():
    with pytest.raises(ValueError, match=r"got 'layers.kernel' of shape \(2, 3, 4\); write matrix"):
        muon(0.1).init({"layers": {"kernel": jnp.zeros((2, 3, 4))}})


def test_the_rate_of_the_next_update_is_told_of_its_own_state_alone():
    tx = muon(optax.linear_schedule(0.0, 0.4, 4))
    grads = jax.tree.map(jnp.asarray, draw(0))
    _, state = tx.update(grads, tx.init(grads))
    own = tx.update.__self__
    np.testing.assert_allclose(own.learning_rate_of(state), 0.1, rtol=1e-6)
    assert own.learning_rate_of(optax.sgd(0.1).init(grads)) is None


def test_params_are_needed_for_decay():
    grads = jax.tree.map(jnp.asarray, draw(0))
    tx = muon(0.1, weight_decay=0.1)
    with pytest.raises(ValueError, match=r"needs the parameters for weight decay; got params=None"):
        tx.update(grads, tx.init(grads))


@pytest.mark.parametrize(
    "arguments, got",
    [
        ({"learning_rate": -1.0}, r"learning_rate must be a number of at least 0.*-1.0; write"),
        ({"weight_decay": -1.0}, r"weight_decay must be a number of at least 0.*-1.0; write"),
        ({"momentum": 1.0}, r"momentum must be in \[0, 1\); got momentum=1.0; write momentum=0.95"),
        ({"ns": "fast"}, r"ns must be one of .*got ns='fast'; write ns='jordan'"),
        ({"scale": "mup"}, r"scale must be one of \['spectral', 'rms', 'width'\].*'mup'; write"),
        ({"decay": "l2"}, r"weight decay must be one of .*got 'l2'; write 'coupled'"),
        ({"matrix": "i o"}, r"a matrix string names .*in matrix='i o'; write axes"),
        ({"exchange": "none"}, r"exchange must be 'auto', 'local', or .*got 'none'; write"),
        ({"chunk_bytes": 0}, r"chunk_bytes must be at least 1; got chunk_bytes=0; write"),
    ],
)
def test_arguments_are_refused(arguments, got):
    with pytest.raises(ValueError, match=got):
        inspect.unwrap(muon)(**{"learning_rate": 0.1, **arguments})
