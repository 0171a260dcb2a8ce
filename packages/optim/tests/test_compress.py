# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Compressed state against float32 state, its bytes, memory and turns, and what it refuses."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dovetail_optim.compressing import stream
from dovetail_optim.compressing.codec import Coded, fp8, fp8_positive
from dovetail_optim.compressing.compress import compress
from dovetail_optim.testing import check_transformation


@pytest.fixture(autouse=True)
def _optax_promotes():
    """`optax.adam` itself raises a float to an integer's power."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def params(seed=0):
    rng = np.random.default_rng(seed)
    return {
        "w": jnp.asarray(rng.standard_normal((3, 37)), jnp.float32),
        "s": jnp.asarray(0.7, jnp.float32),
    }


@pytest.mark.thorough
@pytest.mark.capability("optimizer state in 8 bits")
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_it_keeps_the_contract(dtype):
    small = {"w": params()["w"].astype(dtype)}
    check_transformation(compress(optax.adamw(1e-2), block=8), small)


def descend(tx, steps, *, curvature, start, noise=0.0):
    """Parameters after noisy steps on ½ Σ curvature p², compiled as one scan."""
    rng = np.random.default_rng(3)
    noises = jnp.asarray(noise * rng.standard_normal((steps, *start.shape)), jnp.float32)

    def step(carry, e):
        p, state = carry
        updates, state = tx.update(curvature * p + e, state, p)
        return (optax.apply_updates(p, updates), state), p

    return jax.jit(lambda p: jax.lax.scan(step, (p, tx.init(p)), noises))(start)


@pytest.mark.capability("optimizer state in 8 bits")
@pytest.mark.parametrize("optimizer", ["adamw", "lion", "momentum"])
def test_the_path_is_near_that_of_float32_state(optimizer):
    """Over 200 steps that go most of the way down, relative to the distance travelled.

    One code's error is at most 1/8, and unbiased: over the path errors average out. Without dither,
    or with a second moment flushed to 0, these distances are a multiple of the bound.
    """
    make, codecs = {
        "adamw": (lambda: optax.adamw(2e-2), (("mu", fp8()), ("nu", fp8_positive()))),
        "lion": (lambda: optax.lion(1e-2), (("mu", fp8()),)),
        "momentum": (lambda: optax.sgd(0.05, momentum=0.9), (("trace", fp8()),)),
    }[optimizer]
    rng = np.random.default_rng(1)
    curvature = jnp.asarray(np.exp(rng.standard_normal((8, 96))), jnp.float32)
    start = jnp.asarray(3 * rng.standard_normal((8, 96)), jnp.float32)
    run = {"steps": 200, "curvature": curvature, "start": start, "noise": 0.3}
    _, exact = descend(make(), **run)
    _, ours = descend(compress(make(), codecs=codecs, block=32), **run)
    exact, ours, start = (np.asarray(x, np.float64) for x in (exact, ours, start))
    travelled = np.sqrt(np.mean((exact - start) ** 2, (1, 2)))
    apart = np.sqrt(np.mean((exact - ours) ** 2, (1, 2)))

    assert (apart[20:] <= 0.08 * travelled[20:]).all()


@pytest.mark.thorough
def test_a_second_moment_falls_when_gradients_do():
    """By 0.999 a step: to the nearest code it would stay where it was for ever."""
    tx = compress(optax.scale_by_adam(b1=0.9, b2=0.999), block=64)
    grads = jnp.asarray(np.random.default_rng(0).uniform(0.5, 2.0, (16, 64)), jnp.float32)
    state = tx.init(grads)
    _, state = tx.update(grads, state)

    def quiet(state, _):
        return tx.update(jnp.zeros_like(grads), state)[1], None

    state, _ = jax.jit(lambda s: jax.lax.scan(quiet, s, None, length=1500))(state)
    nu = fp8_positive().decode(state.inner.nu, block=64)
    expected = 0.001 * np.asarray(grads, np.float64) ** 2 * 0.999**1500  # 0.22 of the start
    # 1024 values: the mean of unbiased walks of small steps.
    np.testing.assert_allclose(np.mean(nu / expected), 1.0, atol=0.05)


@pytest.mark.thorough
def test_bytes_and_memory():
    """2.1 bytes a parameter, and a tenth of a leaf beside donated gradients and state."""
    leaves = {"w": jnp.ones((1024, 4096)), "b": jnp.ones(4096)}
    tx = compress(optax.adamw(1e-3))
    state = jax.eval_shape(tx.init, leaves)
    count = sum(x.size for x in jax.tree.leaves(leaves))
    stored = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))
    assert stored <= 2.1 * count
    step = jax.jit(tx.update, donate_argnums=(0, 1)).lower(leaves, state, leaves).compile()
    assert step.memory_analysis().temp_size_in_bytes <= 0.1 * leaves["w"].nbytes


@pytest.mark.thorough
@pytest.mark.parametrize(
    "shape, block", [((40, 64), 16), ((40, 50), 16), ((2600,), 8), ((9, 5, 11), 4)]
)
def test_the_loop_and_the_whole_agree(shape, block, monkeypatch):
    """Streamed a few rows at a time, with a rest, a leaf gets what it gets at once."""
    rng = np.random.default_rng(0)
    p, g = (jnp.asarray(rng.standard_normal(shape), jnp.float32) for _ in range(2))

    def run():
        tx = compress(optax.adamw(1e-2), block=block)
        state = tx.init(p)
        for _ in range(3):
            updates, state = tx.update(g, state, p)
        return jax.tree.leaves((updates, state))

    whole = run()
    monkeypatch.setattr("dovetail_optim.compressing.stream._LEAST", 100)
    monkeypatch.setattr("dovetail_optim.compressing.stream._TURNS", 1 << 20)
    loops = run()
    assert "while" in str(jax.make_jaxpr(lambda: run())())
    for a, b in zip(whole, loops, strict=True):
        if a.dtype == jnp.uint8:  # one code, where a product rounds otherwise
            assert np.mean(np.asarray(a) != np.asarray(b)) < 0.01
        else:
            np.testing.assert_allclose(a, b, rtol=1e-2, atol=1e-6)


def test_no_codes_are_computed_while_init_compiles():
    """A reduction of constants would be, slowly: every one must hang on the parameters."""
    leaf = jax.ShapeDtypeStruct((64, 512), jnp.float32)
    text = jax.jit(compress(optax.adam(1e-3)).init).lower(leaf).compile().as_text()
    assert "reduce" in text


@pytest.mark.thorough
def test_state_has_the_parameters_shapes_and_names():
    state = compress(optax.adamw(1e-3), block=16).init(params())
    mu = state.inner[0].mu
    assert isinstance(mu["w"], Coded)
    assert mu["w"].codes.shape == (3, 37)
    assert mu["w"].exponents.shape == (3, 3)
    assert mu["s"].codes.shape == mu["s"].exponents.shape == ()
    assert state.inner[0].count.dtype == jnp.int32


@pytest.mark.thorough
def test_masks_by_name_and_rank_hold():
    """Decay of matrices alone, though each leaf is updated by itself."""
    p = params()
    tx = optax.adamw(
        1e-2, weight_decay=0.5, mask=lambda tree: jax.tree.map(lambda x: x.ndim > 1, tree)
    )
    zeros = jax.tree.map(jnp.zeros_like, p)
    small = compress(tx, block=16)
    updates, _ = small.update(zeros, small.init(p), p)
    np.testing.assert_allclose(updates["w"], -1e-2 * 0.5 * p["w"], rtol=1e-6)
    assert updates["s"] == 0
    by_name = compress(optax.adamw(1e-2, weight_decay=0.5, mask={"w": False, "s": True}), block=16)
    updates, _ = by_name.update(zeros, by_name.init(p), p)
    np.testing.assert_allclose(updates["s"], -1e-2 * 0.5 * p["s"], rtol=1e-6)
    assert not np.asarray(updates["w"]).any()


@pytest.mark.thorough
def test_a_field_that_is_not_named_stays_as_it_is():
    tx = compress(optax.adamw(1e-2), codecs=(("nu", fp8_positive()),), block=16)
    p = params()
    state = tx.init(p)
    _, state = tx.update(p, state, p)
    np.testing.assert_allclose(state.inner[0].mu["w"], 0.1 * p["w"], rtol=1e-6)


@pytest.mark.thorough
def test_gradients_of_another_dtype_and_no_parameters():
    p = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params())
    tx = compress(optax.scale_by_adam(), block=16)
    updates, _ = tx.update(params(1), tx.init(p), p)
    assert updates["w"].dtype == jnp.bfloat16
    updates, _ = tx.update(params(1), tx.init(params()))
    exact, _ = optax.scale_by_adam().update(params(1), optax.scale_by_adam().init(params()))
    np.testing.assert_allclose(updates["w"], exact["w"], rtol=1e-6)  # the step is before the codes


@pytest.mark.thorough
def test_float64_stays():
    with jax.enable_x64(True):
        p = jnp.asarray(np.linspace(-1, 1, 12).reshape(3, 4))
        tx = compress(optax.sgd(0.1, momentum=0.9), codecs=(("trace", fp8()),), block=4)
        updates, _ = tx.update(p, tx.init(p), p)
    assert updates.dtype == jnp.float64
    np.testing.assert_allclose(updates, -0.1 * np.linspace(-1, 1, 12).reshape(3, 4), rtol=1e-15)


@pytest.mark.thorough
def test_gradients_that_are_not_finite_are_seen():
    tx = compress(optax.adamw(1e-2), block=16)
    p = params()
    g = {**params(1), "s": jnp.asarray(jnp.nan)}
    _, state = tx.update(g, tx.init(p), p)
    updates, _ = tx.update(params(1), state, p)
    assert np.isnan(updates["s"])
    assert np.isfinite(updates["w"]).all()


@pytest.mark.thorough
def test_extra_arguments_reach_the_transformation():
    def update(updates, state, params=None, *, value, scale=None, **extra):
        del params, extra
        return jax.tree.map(lambda g: g * value * scale(2.0), updates), state

    inner = optax.GradientTransformationExtraArgs(
        lambda params: optax.TraceState(jax.tree.map(jnp.zeros_like, params)), update
    )
    tx = compress(inner, codecs=(("trace", fp8()),), block=16)
    p = params()

    @jax.jit
    def run(p):
        return tx.update(p, tx.init(p), p, value=jnp.float32(3), scale=lambda x: x + 1)

    out, _ = run(p)
    np.testing.assert_allclose(out["w"], 9 * p["w"], rtol=1e-6)


@pytest.mark.thorough
def test_on_eight_devices(on_eight_devices):
    on_eight_devices("compact_sharded.py")


def refused(error, tx, message, leaves=None, **options):
    leaves = params() if leaves is None else leaves
    tx = compress(tx, block=16, **options)
    with pytest.raises(error, match=message):
        jax.eval_shape(lambda p: tx.update(p, tx.init(p), p), leaves)


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"at least 1; got block=0; write block=256"):
        compress(optax.adam(1e-3), block=0)
    with pytest.raises(TypeError, match=r"pairs .* got codecs=\('mu',\); write codecs=\(\('mu'"):
        inspect.unwrap(compress)(optax.adam(1e-3), codecs=("mu",))
    refused(
        ValueError, optax.adam(1e-3), r"got codec name 'm'.*\['mu', 'nu'\]", codecs=[("m", fp8())]
    )
    refused(ValueError, optax.lion(1e-3), r"codec name 'nu'")
    whole = {"w": jnp.ones((3, 4), jnp.int32)}
    refused(TypeError, optax.adam(1e-3), r"real floating point.*'w' of int32.*route", whole)


@pytest.mark.parametrize(
    "before, operation",
    [
        (optax.clip_by_global_norm(1.0), "reduce_sum"),
        (optax.scale_by_trust_ratio(), "reduce_sum"),
        (optax.centralize(), "reduce_sum|'div'"),
        (optax.add_noise(0.1, 0.5, 0), "random_bits|threefry"),
        (optax.normalize_by_update_norm(), "reduce_sum"),
        (optax.stateless(lambda u, _: jax.tree.map(lambda x: jnp.cumsum(x, 0), u)), "cumsum"),
        (optax.stateless(lambda u, _: jax.tree.map(lambda x: x[::-1], u)), "rev"),
    ],
)
def test_a_transformation_of_whole_leaves_is_refused(before, operation):
    message = rf"each element's update .* got an operation .*({operation}).*'[ws]'.*optax\.chain"
    refused(TypeError, optax.chain(before, optax.adam(1e-3)), message)


def test_factored_state_is_refused():
    big = {"w": jnp.ones((128, 130))}
    message = r"shaped as its parameter; got state of shape \(128,\).*optax\.adamw.*route"
    refused(TypeError, optax.adafactor(1e-3), message, big, codecs=(("v", fp8()),))


def test_a_gpu_updates_a_leaf_in_one_turn_and_waits_for_no_branch():
    params = {"w": jax.ShapeDtypeStruct((1024, 2048), jnp.float32)}
    tx = compress(optax.adamw(1e-3))
    traced = jax.jit(tx.update).trace(params, jax.eval_shape(tx.init, params), params)
    on_cpu, on_gpu = (
        traced.lower(lowering_platforms=(platform,)).as_text() for platform in ("cpu", "cuda")
    )
    assert "stablehlo.while" in on_cpu
    assert "stablehlo.while" not in on_gpu
    # Two choose the platform, by a constant that XLA folds; the third is the branch of a turn.
    assert (on_cpu.count("stablehlo.case"), on_gpu.count("stablehlo.case")) == (3, 2)


def test_turns_without_a_branch_update_every_row_once():
    rows, width = 11, 3
    read = {"a": jnp.arange(rows * width, dtype=jnp.float32).reshape(rows, width)}
    write = {"b": jnp.ones((rows, width)), "c": jnp.zeros((rows, 1))}

    def turn(start, read, write):
        first = start + jnp.arange(len(write["c"]), dtype=jnp.float32)[:, None]
        return {"b": write["b"] + read["a"], "c": write["c"] + first}

    done = stream._loop(turn, read, write, rows=rows, most=4)
    np.testing.assert_array_equal(done["b"], 1 + read["a"])
    np.testing.assert_array_equal(done["c"][:, 0], np.arange(rows))
