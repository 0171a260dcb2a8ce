# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_models.config import Norm
from dovetail_models.layers.norm import RMSNorm


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
