# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Codes against a table of their values in float64, and against ml_dtypes' casts to float8."""

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_optim.compressing.codec import Coded, fp8, fp8_positive

CODECS = {"fp8": fp8(), "fp8_positive": fp8_positive()}
BINADES = {"fp8": 15, "fp8_positive": 31}
TINY = float(np.finfo(np.float32).tiny)


@functools.partial(jax.jit, static_argnums=(0, 2))
def both(codec, x, block, dither=None):
    coded = codec.encode(x, block=block, dither=dither)
    return coded, codec.decode(coded, block=block)


def round_trip(name, x, block=8, dither=None):
    coded, out = both(CODECS[name], jnp.asarray(x, jnp.float32), block, dither)
    assert coded.codes.shape == out.shape == x.shape
    return np.asarray(out, np.float64)


def levels(name, top):
    """The values >= 0 that a block with the largest value `top` can hold, in float64."""
    binade = np.floor(np.log2(top))
    if top > 1.875 * 2.0**binade and binade < 127:
        binade += 1
    first = max(binade - BINADES[name], -126)
    grid = [(1 + m / 8) * 2.0 ** (first + e) for e in range(BINADES[name] + 1) for m in range(8)]
    return np.array([0.0, *grid[1:]])


def nearest(name, block):
    """The nearest level to each value of one block, as `fp8` and `fp8_positive` promise it."""
    grid = levels(name, max(np.abs(block).max(), TINY))
    sizes = np.where(np.abs(block) < TINY, 0.0, np.abs(block))
    found = grid[np.abs(sizes[:, None] - grid).argmin(1)]
    if name == "fp8_positive":
        found = np.where((block > 0) & (found == 0), grid[1], found)
    return found, grid


def spread(rng, n, scale, wide):
    """Values whose scales differ by factors of e^wide, with zeros between."""
    x = rng.standard_normal(n) * np.exp(wide * rng.standard_normal(n)) * scale
    x = np.where(rng.random(n) < 0.1, 0.0, np.clip(x, -3e38, 3e38))
    return x.astype(np.float32)


@pytest.mark.thorough
@pytest.mark.parametrize("name", CODECS)
@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    scale=st.sampled_from([1e-40, 1e-30, 1e-12, 1.0, 1e30, 1e38]),
    wide=st.sampled_from([0.0, 1.0, 2.0, 6.0]),
)
def test_each_value_becomes_the_nearest_level(name, seed, scale, wide):
    x = spread(np.random.default_rng(seed), 24, scale, wide)
    x = np.abs(x) if name == "fp8_positive" else x
    out = round_trip(name, x)
    for i in range(0, 24, 8):
        block, got = x[i : i + 8].astype(np.float64), np.abs(out[i : i + 8])
        expected, grid = nearest(name, block)
        sizes = np.where(np.abs(block) < TINY, 0.0, np.abs(block))
        tie = np.abs(sizes - got) == np.abs(sizes - expected)  # exact, of dyadic numbers
        assert np.isin(got, grid).all(), "a value that is no level"
        np.testing.assert_array_equal(np.where(tie, expected, got), expected)
        signs = np.sign(out[i : i + 8]) * np.sign(block)
        assert (signs >= 0).all()


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("wide", [0.0, 1.0, 2.0, 4.0])
def test_the_documented_bounds(name, wide):
    rng = np.random.default_rng(0)
    x = np.abs(rng.standard_normal((64, 256)) * np.exp(wide * rng.standard_normal((64, 256))))
    x = x.astype(np.float32).astype(np.float64)
    floor = x.max(-1, keepdims=True) * 2.0 ** (1 - BINADES[name])
    bits = jnp.asarray(rng.integers(0, 2**32, x.shape, dtype=np.uint32))
    for dither, bound in ((None, 1 / 17), (bits, 1 / 8)):
        error = np.abs(round_trip(name, x, 256, dither) - x)
        assert (error / x)[x >= floor].max() <= bound
        assert (error < floor)[x < floor].all()


def test_in_the_range_of_float8_the_codes_are_its_values():
    """e4m3 with its largest exponent at the block's: ml_dtypes rounds to nearest even as we do."""
    rng = np.random.default_rng(1)
    x = (rng.uniform(1, 2, 4096) * 2.0 ** rng.integers(-6, 8, 4096)).astype(np.float32)
    x = np.concatenate([[256.0], x, 1 + np.arange(64) / 64]).astype(np.float32)  # and all ties
    x *= rng.choice([-1.0, 1.0], x.shape).astype(np.float32)
    x = x[np.abs(x) <= 248]
    x[0] = 256.0
    theirs = x.astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
    np.testing.assert_array_equal(round_trip("fp8", x, len(x)), theirs)
    np.testing.assert_array_equal(round_trip("fp8_positive", abs(x), len(x)), abs(theirs))


@pytest.mark.parametrize("name", CODECS)
def test_dither_makes_the_expected_value_exact(name):
    """Equally spaced dither over one value is its expected code, but for the 2⁻²⁰ of its steps."""
    n = 1 << 12
    for x in (1.03, 1.0625, 1.9, 0.013, 2.0**-14.3):
        dither = jnp.asarray(np.arange(n, dtype=np.uint64) * (2**32 // n) + 2**18, jnp.uint32)
        block = np.full(n, x, np.float32)
        block[0] = 2.0
        out = round_trip(name, block, n, dither)[1:]
        assert set(out) <= set(levels(name, 2.0))
        np.testing.assert_allclose(out.mean(), np.float32(x), rtol=1e-3)


def test_below_the_least_code_a_signed_value_is_kept_in_the_mean():
    n, x = 1 << 12, 2.0**-16.7
    dither = jnp.asarray(np.arange(n, dtype=np.uint64) * (2**32 // n), jnp.uint32)
    block = np.full(n, x, np.float32)
    block[0] = 1.0
    out = round_trip("fp8", block, n, dither)[1:]
    assert set(out) == {0.0, levels("fp8", 1.0)[1]}
    np.testing.assert_allclose(out.mean(), x, rtol=2e-3)  # 1/n of the level is 1e-3 of x


@pytest.mark.thorough
def test_no_positive_value_becomes_zero():
    x = np.array([1.0, 1e-20, 1e-38, 1e-45, 0.0, -0.0, 3e38, 0.0], np.float32)
    bits = jnp.asarray(np.zeros(8, np.uint32))
    for dither in (None, bits):
        out = round_trip("fp8_positive", x, 8, dither)
        np.testing.assert_array_equal(out > 0, x > 0)
    assert (round_trip("fp8_positive", x[1:4], 8) > 0).all()


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_seen(name, bad):
    x = np.ones((2, 12), np.float32)
    x[1, 5] = bad
    out = round_trip(name, x)
    broken = np.zeros((2, 12), bool)
    broken[1, :8] = True
    np.testing.assert_array_equal(np.isnan(out), broken)


@pytest.mark.parametrize("name", CODECS)
def test_a_nan_among_many_values_is_seen(name):
    """XLA's parallel maximum on CPUs drops NaN; small arrays are reduced without it."""
    x = np.ones((512, 1024), np.float32)
    x[300, 700] = np.nan
    out = round_trip(name, x)
    assert np.isnan(out[300, 700])
    assert np.isnan(out).sum() < 1024


def test_a_negative_second_moment_is_seen():
    out = round_trip("fp8_positive", np.array([1.0, -1e-3, 2.0], np.float32))
    assert np.isnan(out).all()


def test_the_largest_float_and_the_sign_of_zero():
    top = np.finfo(np.float32).max
    out = round_trip("fp8", np.array([top, -top, -0.0, 0.0], np.float32))
    np.testing.assert_array_equal(out[:2], [1.875 * 2.0**127, -1.875 * 2.0**127])
    np.testing.assert_array_equal(np.signbit(out), [False, True, True, False])


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (2, 3, 17), (4, 16), (0,), (3, 0)])
def test_blocks_end_with_the_last_axis(name, shape):
    """A leaf's codes are those of its rows cut by hand, the last piece shorter."""
    x = np.abs(spread(np.random.default_rng(len(shape)), int(np.prod(shape)), 1.0, 2.0))
    x = x.reshape(shape)
    coded, out = both(CODECS[name], jnp.asarray(x), 8)
    blocks = -(-shape[-1] // 8) if shape else 1
    assert coded.exponents.shape == ((*shape[:-1], blocks) if shape else ())
    assert coded.codes.dtype == coded.exponents.dtype == jnp.uint8
    for row in np.ndindex(shape[:-1]):
        for i in range(0, shape[-1] if shape else 1, 8):
            piece = np.atleast_1d(x[row])[i : i + 8]
            expected = both(CODECS[name], jnp.asarray(np.pad(piece, (0, 8 - len(piece)))), 8)[1]
            got = np.atleast_1d(np.asarray(out)[row])[i : i + 8]
            np.testing.assert_array_equal(got, expected[: len(piece)])


@pytest.mark.thorough
@pytest.mark.parametrize("name", CODECS)
def test_every_code_is_its_own(name):
    """Decoding all 256 codes and encoding them again changes none."""
    codes = jnp.arange(256, dtype=jnp.uint8)
    codec = CODECS[name]
    values = codec.decode(Coded(codes, jnp.full(1, 127, jnp.uint8)), block=256)
    again = codec.encode(values, block=256)
    np.testing.assert_array_equal(again.codes, codes)
    np.testing.assert_array_equal(again.exponents, [127])


def test_decoding_bfloat16_and_float64_inputs():
    x = np.array([1.0, 0.5, -0.25], np.float32)
    for dtype in (jnp.bfloat16, jnp.float16):
        out = both(fp8(), jnp.asarray(x, dtype), 8)[1]
        assert out.dtype == jnp.float32
        np.testing.assert_array_equal(out, x)
