# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""New codes inside a program against `apply` on the new weights outside it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dovetail_quant import Spec, apply, calibrate, plan, requantize


class Policy(nnx.Module):
    def __init__(self, seed):
        rngs = nnx.Rngs(seed)
        self.embed = nnx.Embed(7, 16, rngs=rngs)
        self.norm = nnx.LayerNorm(16, rngs=rngs)
        self.up = nnx.Linear(16, 24, rngs=rngs)
        self.back = nnx.LinearGeneral(24, (2, 8), rngs=rngs)

    def __call__(self, tokens):
        return self.back(self.up(self.norm(self.embed(tokens))))


TOKENS = jnp.arange(7)
RULES = [
    ("embed", Spec()),
    ("up", Spec(weight="nf4", group=8)),
    ("**", Spec(weight="int4", group=8, symmetric=False)),
]


def bits(model):
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(nnx.state(model))]


def test_it_gives_what_apply_gives_without_another_compilation():
    old, new = Policy(0), Policy(1)
    serving = apply(old, plan(old, RULES))
    traced = []

    @nnx.jit
    def call(model, tokens):
        traced.append(tokens)
        return model(tokens)

    before = call(serving, TOKENS)
    update = jax.jit(requantize)
    state = update(nnx.state(serving), nnx.state(new))
    assert jax.tree.structure(state) == jax.tree.structure(nnx.state(serving))
    nnx.update(serving, state)
    assert bits(serving) == bits(apply(new, plan(new, RULES)))
    after = call(serving, TOKENS)
    assert not np.allclose(before, after)
    assert len(traced) == 1


@pytest.mark.thorough
def test_what_x_is_divided_by_stays():
    old, new = Policy(0), Policy(1)
    chosen = plan(old, [("up", Spec(weight="int4", group=8, method="awq"))])
    x = jax.random.randint(jax.random.key(0), (64,), 0, 7)
    serving = apply(old, calibrate(old, chosen, [x], run=lambda m, b: m(b)))
    scale = serving.up.kernel[...].scale
    nnx.update(serving, requantize(nnx.state(serving), nnx.state(new)))
    kernel = serving.up.kernel[...]
    np.testing.assert_array_equal(kernel.scale, scale)
    w = np.asarray(new.up.kernel[...], np.float64) * np.asarray(scale, np.float64)[:, None]
    groups = w.reshape(2, 8, 24)
    step = np.abs(groups).max(1, keepdims=True) / 7.5
    error = np.abs(np.asarray(kernel.dequantize()) * np.asarray(scale)[:, None] - w)
    # Half a step, or a whole one at the end that the codes of int4 lack; and float32's rounding.
    assert (error.reshape(groups.shape) <= step * 0.5001 + 1e-6).all()


@pytest.mark.thorough
def test_other_weights_are_refused():
    model = Policy(0)
    serving = nnx.state(apply(model, plan(model, RULES)))
    with pytest.raises(ValueError, match=r"got none for 'back.kernel'; pass nnx.state"):
        requantize(serving, nnx.state(nnx.Linear(2, 2, rngs=nnx.Rngs(0))))
    other = Policy(0)
    other.up = nnx.Linear(16, 25, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"'up.kernel' of shape \[16, 25\] for codes of \[16, 24"):
        requantize(serving, nnx.state(other))
