# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Encoded keys and values against their bounds, alone and in attention."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_quant.codes.kv import Int8, KVCodec

pytestmark = pytest.mark.capability("attention keys and values in one byte")

CODEC = Int8()


def decoded(x, dtype=jnp.float32):
    return CODEC.decode(*CODEC.encode(x), dtype=dtype)


def error_bound(x):
    """scale / 2 of each vector, and what float32 adds: in the scale, the quotient, the product."""
    scale = np.abs(x.astype(np.float64)).max(-1, keepdims=True) / 127
    return scale * (0.5 + 4 * 127 * 2**-24)


@pytest.mark.thorough
@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    shape=st.sampled_from([(0, 3, 7), (1, 1, 1), (5, 3, 64), (5, 1, 7)]),  # each is compiled
    dtype=st.sampled_from(["float32", "bfloat16"]),
    exponent=st.integers(-30, 30),
)
def test_the_error_is_half_a_step(seed, shape, dtype, exponent):
    rng = np.random.default_rng(seed)
    x = rng.standard_t(2, size=shape) * 10.0 ** rng.integers(-3, 4, (shape[0], 1, 1))
    x = jnp.asarray(x * 10.0**exponent, dtype)
    codes, scale = CODEC.encode(x)
    assert (codes.dtype, codes.shape) == (jnp.int8, x.shape)
    assert (scale.dtype, scale.shape) == (jnp.float32, x.shape[:-1])
    exact = np.asarray(x, np.float64)
    error = np.abs(np.asarray(CODEC.decode(codes, scale, dtype=jnp.float32), np.float64) - exact)
    assert np.all(error <= error_bound(exact))
    narrow = np.asarray(CODEC.decode(codes, scale, dtype=dtype), np.float64)
    largest = np.abs(exact).max(-1, keepdims=True, initial=0)
    assert np.all(np.abs(narrow - exact) <= error_bound(exact) + largest * jnp.finfo(dtype).eps)
    assert np.all(np.abs(np.asarray(codes, int)) <= 127)


def test_codes_are_those_of_the_rule():
    rng = np.random.default_rng(0)
    x = rng.standard_t(2, size=(50, 3, 9)).astype(np.float32)
    exact = x.astype(np.float64)
    step = np.abs(exact).max(-1) / 127
    quotients = exact / step[..., None]
    codes, scale = CODEC.encode(jnp.asarray(x))
    np.testing.assert_allclose(scale, step, rtol=2**-22)
    # Away from halves, where float32 may round to either side.
    clear = np.abs(np.abs(quotients - np.round(quotients)) - 0.5) > 1e-4
    assert clear.mean() > 0.99
    np.testing.assert_array_equal(np.asarray(codes)[clear], np.round(quotients)[clear])


@pytest.mark.thorough
def test_under_jit_and_vmap_it_is_the_same():
    x = jax.random.normal(jax.random.key(0), (4, 5, 2, 33), jnp.bfloat16)
    want = CODEC.encode(x)
    for found in jax.jit(CODEC.encode)(x), jax.vmap(jax.jit(CODEC.encode))(x):
        jax.tree.map(np.testing.assert_array_equal, found, want)
    np.testing.assert_array_equal(jax.vmap(lambda x: decoded(x))(x), decoded(x))


@pytest.mark.thorough
def test_zeros_give_zeros_and_what_is_not_finite_shows():
    x = jnp.ones((6, 1, 4)).at[0].set(0).at[1].set(1e-40).at[2, 0, 1].set(jnp.nan)
    x = x.at[3, 0, 2].set(jnp.inf).at[4, 0, 0].set(-jnp.inf)
    for found in decoded(x), jax.jit(decoded)(x):
        np.testing.assert_array_equal(found[:2], np.zeros((2, 1, 4)))
        assert np.all(np.isnan(found[2:5]))
        np.testing.assert_allclose(found[5], 1.0, rtol=2**-22)


@pytest.mark.thorough
def test_a_nan_among_many_values_shows():
    """XLA's parallel maximum on CPUs drops NaN; small arrays are reduced without it."""
    x = jnp.ones((512, 8, 128)).at[300, 3, 77].set(jnp.nan)
    for found in decoded(x), jax.jit(decoded)(x):
        assert np.all(np.isnan(found[300, 3]))
        assert np.isnan(found).sum() == 128


@pytest.mark.thorough
def test_a_cache_scatters_and_gathers_codes_and_scales():
    x = jax.random.normal(jax.random.key(0), (7, 2, 16))
    slots = jnp.array([3, 9, 0, 5, 6, 1, 8])
    codes, scale = CODEC.encode(x)
    pages = jnp.zeros((10, 2, 16), jnp.int8).at[slots].set(codes)
    scales = jnp.zeros((10, 2)).at[slots].set(scale)
    found = CODEC.decode(pages[slots], scales[slots], dtype=jnp.float32)
    np.testing.assert_array_equal(found, decoded(x))
    one = CODEC.encode(x[4])  # a token alone is what it is among others
    np.testing.assert_array_equal(one[0], codes[4])
    np.testing.assert_array_equal(one[1], scale[4])


@pytest.mark.parametrize("size", [64, 128, 256])
def test_it_costs_what_the_docstring_says(size):
    x = jax.random.normal(jax.random.key(0), (1000, 2, size))
    codes, scale = CODEC.encode(x)
    assert codes.nbytes + scale.nbytes == x.nbytes * (size + 4) / (4 * size)
    stated = {64: 0.0059, 128: 0.0065, 256: 0.0069}[size]
    error = np.asarray(decoded(x) - x, np.float64)
    assert np.sqrt(np.mean(error**2)) == pytest.approx(stated, rel=0.02)
    loud = x.at[..., 0].multiply(10)
    error = np.asarray(decoded(loud) - loud, np.float64)[..., 1:]
    assert np.sqrt(np.mean(error**2)) == pytest.approx(0.023, rel=0.03)


def attention(q, k, v):
    """softmax(q k^T / sqrt(D)) v per head, in float64; the logits too."""
    q, k, v = (np.asarray(a, np.float64) for a in (q, k, v))
    logits = np.einsum("thd,shd->hts", q, k) / np.sqrt(q.shape[-1])
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("hts,shd->thd", weights, v)


@pytest.mark.thorough
def test_attention_over_encoded_keys_and_values_is_near():
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(n, 3, 64)).astype(np.float32) for n in (5, 40, 40))
    k[..., 7] *= 10
    want = attention(q, k, v)
    found = attention(q, decoded(jnp.asarray(k)), decoded(jnp.asarray(v)))
    # A logit moves by at most |q|_1 max(dk) / sqrt(D), so a weight by a factor within e^(2 that).
    moved = np.abs(q).sum(-1).max() * error_bound(k).max() / 8
    bound = np.expm1(2 * moved) * np.abs(v).max() + error_bound(v).max()
    error = np.abs(found - want)
    assert error.max() <= bound
    # Errors of channels are independent: a logit's is 0.023 (for keys as these), and with it that
    # of a weight, and of a mean of values, as a fraction of it.
    assert np.sqrt(np.mean(error**2)) < 0.03 * np.sqrt(np.mean(want**2))
    assert error.max() > 0


def test_wrong_arrays_are_refused():
    assert isinstance(CODEC, KVCodec)
    assert hash(CODEC) == hash(Int8())
    codes, scale = CODEC.encode(jnp.ones((5, 2, 4)))
    with pytest.raises(ValueError, match=r"with D above 0, got x=\(5, 2, 0\); write"):
        CODEC.encode(jnp.ones((5, 2, 0)))
    with pytest.raises(ValueError, match=r"got scale=\(4, 2\) for codes=\(5, 2, 4\); index both"):
        inspect.unwrap(Int8.decode)(CODEC, codes, scale[1:], dtype=jnp.float32)
    with pytest.raises(TypeError, match=r"got dtype=int8; write dtype=jnp.bfloat16"):
        CODEC.decode(codes, scale, dtype=jnp.int8)
    with pytest.raises(TypeError, match=r"got x of dtype=int32; write x.astype"):
        inspect.unwrap(Int8.encode)(CODEC, jnp.ones((5, 2, 4), jnp.int32))
