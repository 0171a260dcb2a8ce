# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax.numpy as jnp
import numpy as np
from flax import nnx

from dovetail_models import Mlp
from dovetail_models.layers.mlp import FeedForward


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
