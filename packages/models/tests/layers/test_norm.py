# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_models.config import Norm
from dovetail_models.layers.norm import RMSNorm, norm_layer


@pytest.mark.parametrize("size", [1e-4, 1.0, 300.0])
def test_it_is_the_formula_at_every_scale(size):
    rng = np.random.default_rng(0)
    x, scale = size * rng.standard_normal((3, 2, 7)), rng.standard_normal(7)
    norm = RMSNorm(7, Norm(eps=1e-5))
    norm.scale.set_value(jnp.asarray(scale, jnp.float32))
    want = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * scale
    got = norm(jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_bfloat16_is_normalised_in_float32_and_comes_back_as_bfloat16():
    # 300² x 7 sums to 630000, past the 8 bits of bfloat16; the scale is float32.
    x = 300 + np.arange(7.0)
    got = RMSNorm(7, Norm())(jnp.asarray(x, jnp.bfloat16))
    assert got.dtype == jnp.bfloat16
    rounded = np.asarray(jnp.asarray(x, jnp.bfloat16), np.float64)
    want = rounded / np.sqrt((rounded**2).mean())
    np.testing.assert_allclose(got.astype(np.float32), want, rtol=2**-8)


def test_a_unit_offset_is_added_to_the_scale_and_multiplied_before_rounding():
    rng = np.random.default_rng(1)
    x, scale = rng.standard_normal((4, 7)), rng.standard_normal(7)
    norm = norm_layer(7, Norm(eps=1e-5, unit_offset=True, wide=True))
    np.testing.assert_array_equal(norm.scale[...], np.zeros(7))
    norm.scale.set_value(jnp.asarray(scale, jnp.float32))
    low = jnp.asarray(x, jnp.bfloat16)
    exact = np.asarray(low, np.float64)
    want = exact / np.sqrt((exact**2).mean(-1, keepdims=True) + 1e-5) * (1 + scale)
    got = norm(low)
    assert got.dtype == jnp.bfloat16
    # One rounding to the 8 bits of bfloat16.
    np.testing.assert_allclose(got.astype(np.float32), want, rtol=2**-8)


@pytest.mark.parametrize("shift", [0.0, 1000.0])
def test_layer_norm_is_the_formula_far_from_zero_too(shift):
    rng = np.random.default_rng(2)
    x = (shift + rng.standard_normal((3, 2, 9))).astype(np.float32)
    scale, bias = rng.standard_normal((2, 9))
    norm = norm_layer(9, Norm(kind="layer", eps=1e-3))
    norm.scale.set_value(jnp.asarray(scale, jnp.float32))
    norm.bias.set_value(jnp.asarray(bias, jnp.float32))
    exact = x.astype(np.float64)
    centred = exact - exact.mean(-1, keepdims=True)
    want = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-3) * scale + bias
    # Around 1000 the inputs themselves leave 6e-5 of each difference from the mean.
    np.testing.assert_allclose(norm(jnp.asarray(x)), want, rtol=1e-4, atol=2e-4 if shift else 2e-6)
