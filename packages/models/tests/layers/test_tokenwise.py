# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import math

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dovetail_models import ClampedGlu, Mlp, Norm
from dovetail_models.layers.tokenwise import FeedForward, RMSNorm, activate, glu, norm_layer


@pytest.mark.parametrize("size", [1e-4, 1.0, 300.0])
def test_rms_norm_is_the_formula_at_every_scale(size):
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


def test_feed_forward_is_the_formula_and_names_its_hidden_units():
    mlp = FeedForward(3, Mlp(hidden=5, bias=True), std=0.7, rngs=nnx.Rngs(0))
    rng = np.random.default_rng(0)
    for part in (mlp.gate, mlp.up, mlp.down):
        part.bias.set_value(jnp.asarray(rng.standard_normal(part.bias.shape), jnp.float32))
    x = rng.standard_normal((2, 4, 3))
    seen = []

    def constrain(x, names):
        seen.append((x.shape, names))
        return x

    def linear(part, x):
        return x @ np.asarray(part.kernel[...], np.float64) + np.asarray(part.bias[...])

    gate = linear(mlp.gate, x)
    want = linear(mlp.down, gate / (1 + np.exp(-gate)) * linear(mlp.up, x))
    got = mlp(jnp.asarray(x, jnp.float32), constrain=constrain)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert seen == [((2, 4, 5), ("batch", "seq", "mlp"))]


def test_without_a_gate_the_activation_is_on_up():
    mlp = FeedForward(3, Mlp(hidden=5, gated=False, activation="relu"), std=1.0, rngs=nnx.Rngs(0))
    x = np.random.default_rng(1).standard_normal((1, 4, 3))
    up, down = (np.asarray(part.kernel[...], np.float64) for part in (mlp.up, mlp.down))
    got = mlp(jnp.asarray(x, jnp.float32), constrain=lambda x, names: x)
    np.testing.assert_allclose(got, np.maximum(x @ up, 0) @ down, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "kind, formula",
    [
        ("silu", lambda x: x / (1 + math.exp(-x))),
        ("relu", lambda x: max(x, 0.0)),
        ("gelu", lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2),
        ("gelu_tanh", lambda x: x / (1 + math.exp(-1.5957691216 * (x + 0.044715 * x**3)))),
    ],
)
def test_activations(kind, formula):
    x = np.linspace(-4, 4, 33)
    want = [formula(v) for v in x]
    got = activate(jnp.asarray(x, jnp.float32), kind)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-6)
    # The two GELUs are 1e-3 apart, which a mistaken one would show.


def test_a_clamped_gate_bounds_the_gate_above_and_up_on_both_sides():
    gate = np.array([-30.0, -1.0, 0.5, 2.0, 9.0])
    up = np.array([5.0, -8.0, 1.0, 3.0, -0.5])
    got = glu(
        jnp.asarray(gate, jnp.float32),
        jnp.asarray(up, jnp.float32),
        ClampedGlu(limit=2.0, alpha=1.5),
    )
    low, bounded = np.minimum(gate, 2.0), np.array([2.0, -2.0, 1.0, 2.0, -0.5])
    want = low / (1 + np.exp(-1.5 * low)) * (bounded + 1)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7)
