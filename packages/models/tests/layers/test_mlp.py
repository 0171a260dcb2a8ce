# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import math

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dovetail_models import ClampedGlu, Mlp
from dovetail_models.layers.mlp import FeedForward, activate, glu


def test_it_is_the_formula_and_names_its_hidden_units():
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
