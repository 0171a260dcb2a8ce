# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The split over float32's bit patterns against NumPy's bits; training against float32 training."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest

from dovetail_optim.compressing.master import join, join_leaf, split, split_master
from dovetail_optim.testing import check_transformation

taken_apart = jax.jit(split)
put_together = jax.jit(join_leaf)


@pytest.fixture(autouse=True)
def _optax_promotes():
    """`optax.apply_updates` adds float32 to bfloat16."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def check_patterns(raw):
    """What `split` promises, of float32s with these bits."""
    x = raw.view(np.float32)
    upper, remainder = taken_apart(x)
    back = np.asarray(put_together(upper, remainder)).view(np.uint32)
    last = raw & 0x7FFF8000 == 0x7FFF8000
    np.testing.assert_array_equal(back[~last], raw[~last])
    np.testing.assert_array_equal(back[last], raw[last] & 0xFFFF7FFF)
    # The nearest bfloat16: halfway or less in the bits, and away from zero if halfway.
    upper = np.asarray(upper).view(np.uint16)
    away = (raw.astype(np.uint64) + 0x8000) >> 16
    np.testing.assert_array_equal(upper[~last], away[~last])
    shown = upper.view(ml_dtypes.bfloat16).astype(np.float32)
    large = np.isnan(x) & (raw & 0x7FFF8000 != 0x7F800000)
    assert np.isnan(shown[large]).all()
    assert not np.isnan(shown[~np.isnan(x)]).any()


def test_a_sample_of_all_patterns():
    """Each exponent and sign with the ends of the lower half, and 2²⁰ patterns besides."""
    low = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    ends = (np.arange(1 << 16, dtype=np.uint32)[:, None] << 16 | low).ravel()
    check_patterns(ends)
    check_patterns(np.random.default_rng(0).integers(0, 2**32, 1 << 20, dtype=np.uint32))


@pytest.mark.slow
def test_all_patterns():
    chunk = 1 << 24
    for start in range(0, 1 << 32, chunk):
        check_patterns(np.arange(start, start + chunk, dtype=np.uint64).astype(np.uint32))


def test_zeros_and_infinities_show_as_they_are():
    x = np.array([0.0, -0.0, np.inf, -np.inf], np.float32)
    upper, remainder = taken_apart(x)
    assert np.asarray(upper).astype(np.float32).tobytes() == x.tobytes()
    assert not np.asarray(remainder).any()


def tree(seed, dtype=jnp.bfloat16):
    rng = np.random.default_rng(seed)
    return {
        "w": jnp.asarray(rng.standard_normal((5, 7)), dtype),
        "norm": jnp.asarray(rng.standard_normal(7), jnp.float32),
    }


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_it_keeps_the_contract(dtype):
    check_transformation(split_master(optax.adamw(1e-2)), {"w": tree(0, dtype)["w"]})


@pytest.mark.parametrize("make", [lambda: optax.adamw(1e-3), lambda: optax.sgd(1e-4, momentum=0.9)])
def test_the_master_moves_as_float32_bit_for_bit(make):
    """On the same gradients, 40 steps most of which are less than half a bfloat16's last bit."""
    params, whole = tree(0), jax.tree.map(lambda p: p.astype(jnp.float32), tree(0))
    tx, plain = split_master(make()), make()
    state, exact = tx.init(params), plain.init(whole)
    for i in range(40):
        grads = tree(i + 1)
        updates, state = tx.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        wide = jax.tree.map(lambda g: g.astype(jnp.float32), grads)
        updates, exact = plain.update(wide, exact, whole)
        whole = optax.apply_updates(whole, updates)
        for a, b in zip(jax.tree.leaves(join(params, state)), jax.tree.leaves(whole), strict=True):
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
        assert params["w"].dtype == jnp.bfloat16
        half = 2.0**-9 * np.abs(whole["w"]) * (1 + 1e-6)  # of the last bit, at most
        assert (np.abs(np.asarray(params["w"], np.float32) - whole["w"]) <= 2 * half).all()
    assert state.remainder["norm"] is None


def one_step(start, by):
    """The parameter and its master after `by` is added to the float32 `start`."""
    p, remainder = split(jnp.asarray(start))
    tx = split_master(optax.stateless(lambda g, _: g))
    state = tx.init(p)._replace(remainder=remainder)
    updates, state = tx.update(jnp.asarray(by), state, p)
    moved = optax.apply_updates(p, updates)
    return np.asarray(moved).astype(np.float32), np.asarray(join(moved, state))


def test_large_steps_land():
    """To any size from any, signs changed, and almost back to zero: bit for bit float32's sum."""
    rng = np.random.default_rng(5)
    scale = 2.0 ** rng.integers(-40, 40, (2, 4000))
    start, to = (rng.standard_normal((2, 4000)) * scale).astype(np.float32)
    start = np.concatenate([start, np.linspace(1, 2, 500, dtype=np.float32)])
    to = np.concatenate([to, 2.0**-18 * np.linspace(3, -3, 500)]).astype(np.float32)
    by = to - start
    moved, master = one_step(start, by)
    exact = start + by
    assert (np.abs(exact) < 2.0**-16 * np.abs(start)).sum() > 1000
    np.testing.assert_array_equal(master, exact)
    np.testing.assert_array_equal(moved, np.asarray(taken_apart(exact)[0]).astype(np.float32))


@pytest.mark.thorough
def test_where_a_step_cannot_land_the_master_is_where_it_does():
    """p = 1 of masters below 1, whose last bit is 2⁻²⁴: to -3 of these it is p - 1 - 3 · 2⁻²⁴."""
    start = np.float32(1 - 2.0**-10) - np.arange(50, dtype=np.float32) * np.float32(2.0**-24)
    by = -(start + np.float32(3 * 2.0**-24))
    np.testing.assert_array_equal(start + by, np.full(50, -3 * 2.0**-24))
    moved, master = one_step(start, by)
    assert (moved != np.float32(-3 * 2.0**-24)).all()
    np.testing.assert_array_equal(master, moved)
    assert (np.abs(master + 3 * 2.0**-24) <= 2.0**-24).all()


@pytest.mark.thorough
def test_zero_updates_keep_every_bit():
    raw = np.arange(1 << 16, dtype=np.uint16)
    p = jnp.asarray(raw.view(ml_dtypes.bfloat16))
    p = p[~jnp.isnan(p)]
    tx = split_master(optax.sgd(0.0))
    updates, state = tx.update(jnp.zeros_like(p), tx.init(p), p)
    moved = optax.apply_updates(p, updates)
    # A denormal is flushed to zero by processors.
    size = np.abs(np.asarray(p, np.float32))
    normal = (size == 0) | (size >= np.finfo(np.float32).tiny)
    kept = np.asarray(moved).view(np.uint16) == np.asarray(p).view(np.uint16)
    assert kept[normal].all()
    assert not np.asarray(state.remainder).any()


def test_a_value_that_is_not_finite_is_seen():
    p = jnp.asarray([1.0, 2.0, 3.0], jnp.bfloat16)
    tx = split_master(optax.sgd(1.0))
    grads = jnp.asarray([jnp.nan, -jnp.inf, 0.5], jnp.bfloat16)
    updates, state = tx.update(grads, tx.init(p), p)
    moved = optax.apply_updates(p, updates)
    np.testing.assert_array_equal(np.asarray(moved, np.float32), [np.nan, np.inf, 2.5])
    np.testing.assert_array_equal(join(moved, state), [np.nan, np.inf, 2.5])


@pytest.mark.thorough
def test_starting_from_float32():
    whole = np.random.default_rng(2).standard_normal((3, 5)).astype(np.float32)
    p, remainder = split(jnp.asarray(whole))
    tx = split_master(optax.sgd(0.5))
    state = tx.init(p)._replace(remainder=remainder)
    updates, state = tx.update(jnp.full((3, 5), 0.25, jnp.float32), state, p)
    found = join(optax.apply_updates(p, updates), state)
    np.testing.assert_array_equal(found, whole - np.float32(0.125))


def test_what_is_refused():
    tx = split_master(optax.sgd(1.0))
    with pytest.raises(TypeError, match=r"bfloat16, and.*'a.b' of float16; write params\.astype"):
        tx.init({"a": {"b": jnp.ones(3, jnp.float16)}})
    p = jnp.ones(3, jnp.bfloat16)
    with pytest.raises(ValueError, match=r"needs the parameters.*params=None; write tx\.update"):
        tx.update(p, tx.init(p))
