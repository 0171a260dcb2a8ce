# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Quantized training against Qwix's product, integers of NumPy and the expectation of noise."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import qwix
from flax import nnx

from dovetail_quant import Plan, Spec, freeze, plan, qat, qt
from dovetail_quant.training.qt import CodesProduct, noise

EPS = np.finfo(np.float32).eps
INT8 = Spec(act="int8")
FP8 = Spec(weight="fp8", act="fp8")


def drawn(seed=0, rows=9, inputs=32, outputs=12):
    generator = np.random.default_rng(seed)
    shapes = (rows, inputs), (inputs, outputs), (rows, outputs)
    return [
        jnp.asarray(generator.normal(size=s) * np.exp(generator.normal(size=(s[0], 1))), "f4")
        for s in shapes
    ]


def gradients(matmul, x, w, dy):
    y, pull = jax.vjp(matmul, x, w)
    return [np.asarray(a, np.float64) for a in (y, *pull(dy))]


def product(spec, **options):
    return CodesProduct(
        spec=spec, **{"gradients": "int8", "stochastic": False, "seed": 0} | options
    )


def int8(a, axis):
    """Codes and scales by Qwix, with a scale for each index of `axis`."""
    q = qwix.quantize(jnp.asarray(a, jnp.float32), jnp.int8, channelwise_axes=[axis])
    return np.asarray(q.qvalue, int), np.asarray(q.scale, np.float32)


@pytest.mark.thorough
def test_forward_and_backward_are_products_of_integers():
    x, w, dy = drawn()
    y, dx, dw = gradients(product(INT8), x, w, dy)
    x, dy = np.asarray(x), np.asarray(dy)
    xs = abs(x).max(1, keepdims=True) * np.float32(1 / 127)
    xq = np.round(x / xs).astype(int)
    wq, ws = int8(w, 1)
    close = {"rtol": 4 * EPS, "atol": 1e-9}  # integers are exact; scales are multiplied in turn
    np.testing.assert_allclose(y, (xq @ wq) * xs.astype(float) * ws, **close)
    rows, scale = int8(dy * ws, 0)
    np.testing.assert_allclose(dx, (rows @ wq.T) * scale.astype(float), **close)
    columns, scale = int8(dy * xs, 1)
    np.testing.assert_allclose(dw, (xq.T @ columns) * scale.astype(float), **close)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Qwix's own calls of NNX
@pytest.mark.parametrize("group", [None, 8])
@pytest.mark.parametrize("gradient, qtype", [("fp8", "float8_e4m3fn"), ("fp8_e5m2", "float8_e5m2")])
def test_it_is_qwix_s_quantized_training(group, gradient, qtype):
    x, _, dy = drawn(1)
    module = nnx.Linear(32, 12, use_bias=False, rngs=nnx.Rngs(2))
    fp8 = "float8_e4m3fn"
    rule = qwix.QtRule(weight_qtype=fp8, act_qtype=fp8, bwd_qtype=qtype, tile_size=group)
    theirs = qwix.quantize_model(module, qwix.QtProvider([rule]), x)
    w = module.kernel[...]
    spec = Spec(weight="fp8", act="fp8", group=group)
    ours = gradients(product(spec, gradients=gradient), x, w, dy)

    value, pull = jax.vjp(lambda x: theirs(x), x)
    (dx,) = pull(dy)
    dw = nnx.grad(lambda m: (m(x) * dy).sum())(theirs)["kernel"].get_value()
    for one, other, operands in zip(
        ours, (value, dx, dw), ((x, w), (dy, w.T), (x.T, dy)), strict=True
    ):
        size = abs(np.asarray(operands[0])) @ abs(np.asarray(operands[1]))
        # Sums in another order; the levels are equal.
        assert (abs(one - np.asarray(other, np.float64)) <= 64 * EPS * size).all()


@pytest.mark.thorough
def test_noise_is_uniform_and_rounding_has_the_right_mean():
    g = jnp.broadcast_to(jnp.asarray([0.3, -1.7, 99.0, 1e-3, 0.02]), (40_000, 5))
    drawn = np.asarray(noise(g, seed=3), np.float64)
    assert (drawn >= -0.5).all()
    assert (drawn < 0.5).all()
    # Five standard errors of a mean of 40,000 uniform numbers.
    assert (abs(drawn.mean(0)) < 5 * (1 / 12 / 40_000) ** 0.5).all()
    assert (abs(np.corrcoef(drawn.T) - np.eye(5)) < 5 / 40_000**0.5).all()
    assert (noise(g, seed=3) == noise(g, seed=3)).all()
    assert abs(np.corrcoef(drawn[:, 0], np.asarray(noise(g, seed=4))[:, 0])[0, 1]) < 5 / 200

    # The largest number of a row is 127.5 steps, which no code reaches: it comes from elsewhere.
    g = jnp.concatenate([g, jnp.full((len(g), 1), 100.0)], axis=1)
    w = jnp.eye(6)
    matmul = product(INT8, stochastic=True)
    dx = gradients(matmul, jnp.ones_like(g), w, g)[1]
    step = 100 / 127.5
    exact, dx = np.asarray(g, np.float64)[0, :5] * 127 / 127.5, dx[:, :5]  # w is 127 steps
    # Half a step at most away, in the mean five standard errors of a Bernoulli variable.
    assert (abs(dx - exact).max(0) <= 1.01 * step).all()
    assert (abs(dx.mean(0) - exact) < 5 * 0.5 * step / 40_000**0.5).all()
    nearest = gradients(product(INT8), jnp.ones_like(g), w, g)[1][:, :5]
    assert abs(nearest.mean(0) - exact).max() > 0.2  # rounded to nearest, the small ones vanish


class Layers(nnx.Module):
    def __init__(self, dtype=None):
        rngs = nnx.Rngs(0)
        self.embed = nnx.Embed(11, 24, rngs=rngs)
        self.general = nnx.LinearGeneral(24, (2, 8), dtype=dtype, rngs=rngs)
        self.back = nnx.LinearGeneral((2, 8), 16, axis=(-2, -1), dtype=dtype, rngs=rngs)
        self.einsum = nnx.Einsum("btd,nhd->btnh", (2, 12, 16), (2, 12), dtype=dtype, rngs=rngs)
        self.experts = Experts(rngs)

    def __call__(self, tokens):
        x = self.einsum(nnx.relu(self.back(self.general(self.embed(tokens)))))
        return self.experts(x.reshape(-1, 24))


class Experts(nnx.Module):
    def __init__(self, rngs):
        self.kernel = nnx.Param(jax.random.normal(rngs.params(), (2, 24, 8)) / 5)
        self.ragged_dot = jax.lax.ragged_dot

    def __call__(self, x):
        return self.ragged_dot(x, self.kernel[...], jnp.array([3, len(x) - 3]))


TOKENS = jnp.arange(10).reshape(2, 5)


# What the codes lose over four layers: of the loss, and of the cosine of gradients.
@pytest.mark.thorough
@pytest.mark.parametrize(
    "spec, lost",
    [(INT8, 0.05), (FP8, 0.15), (Spec(weight="int4", act="int4", group=8), 0.5)],
    ids=["int8", "fp8", "int4"],
)
def test_every_kind_of_site_trains_and_freezes(spec, lost):
    model = Layers()
    chosen = plan(model, [("**", spec)])
    assert len(chosen.specs) == 4
    trained = qt(model, chosen, TOKENS, gradients="int8", stochastic=True)

    def loss(m):
        return (m(TOKENS) ** 2).sum()

    float_loss, exact = nnx.value_and_grad(loss)(model)
    value, gradient = nnx.value_and_grad(loss)(trained)
    assert value != float_loss
    assert abs(value / float_loss - 1) < lost
    ours, theirs = jax.tree.leaves(gradient), jax.tree.leaves(exact)
    for one, other in zip(ours, theirs, strict=True):
        cosine = (one * other).sum() / jnp.linalg.norm(one) / jnp.linalg.norm(other)
        assert cosine > 1 - lost / 4
    frozen = freeze(trained)
    assert abs(frozen(TOKENS) - qat(model, chosen, TOKENS)(TOKENS)).max() < 0.1


@pytest.mark.thorough
def test_a_regression_is_learnt():
    generator = np.random.default_rng(0)
    x = jnp.asarray(generator.normal(size=(64, 32)), "f4")
    y = x @ jnp.asarray(generator.normal(size=(32, 8)), "f4") / 6
    model = nnx.Linear(32, 8, rngs=nnx.Rngs(0))
    trained = qt(model, plan(model, [("**", INT8)]), x, gradients="int8", stochastic=True)

    @nnx.jit
    def step(m):
        loss, grads = nnx.value_and_grad(lambda m: ((m(x) - y) ** 2).mean())(m)
        nnx.update(m, jax.tree.map(lambda p, g: p - 0.5 * g, nnx.state(m, nnx.Param), grads))
        return loss

    losses = [float(step(trained)) for _ in range(60)]
    assert losses[-1] < 0.02 * losses[0]


@pytest.mark.parametrize(
    "spec, options, text",
    [
        (Spec(), {}, "operands of quantized training are symmetric codes, got Spec(weight='int8'"),
        (Spec(act="int8", symmetric=False), {}, "are symmetric codes, got"),
        (
            INT8,
            {"gradients": "fp8", "stochastic": True},
            "got stochastic=True with gradients='fp8'",
        ),
    ],
)
def test_what_it_lacks_is_refused(spec, options, text):
    model = nnx.Linear(32, 8, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=re.escape(text)):
        qt(model, plan(model, [("**", spec)]), jnp.ones((2, 32)), **{"gradients": "int8"} | options)


def test_an_embedding_is_refused():
    model = Layers()
    named = plan(model, [("embed", INT8)])
    with pytest.raises(ValueError, match="got the embedding 'embed' in the plan; leave it out"):
        qt(model, named, TOKENS, gradients="int8")
    assert isinstance(named, Plan)
