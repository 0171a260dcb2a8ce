# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dovetail_models import Experts
from dovetail_models.layers.experts import ExpertLinear, MixtureOfExperts


def same(x, names):
    return x


@nnx.jit
def mixed(layer, x):
    return layer(x, constrain=same)


def test_each_row_meets_its_own_matrix():
    names = ("experts", "embed", "mlp")
    linear = ExpertLinear((3, 4, 5), names, bias=True, std=1.0, rngs=nnx.Rngs(0))
    bias = np.random.default_rng(1).standard_normal((3, 5))
    linear.bias.set_value(jnp.asarray(bias, jnp.float32))
    x = np.random.default_rng(2).standard_normal((6, 4))
    experts = np.array([0, 0, 2, 2, 2, 2])
    sizes = jnp.array([2, 0, 4], jnp.int32)
    got = linear(jnp.asarray(x, jnp.float32), sizes=sizes, experts=jnp.asarray(experts))
    kernel = np.asarray(linear.kernel[...], np.float64)
    want = [row @ kernel[e] + bias[e] for row, e in zip(x, experts, strict=True)]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tokens", [1, 7])
def test_no_token_is_dropped_even_if_all_choose_one_expert(tokens):
    layer = MixtureOfExperts(4, Experts(count=5, top_k=1, hidden=3), std=1.0, rngs=nnx.Rngs(0))
    kernel = np.zeros((4, 5))
    kernel[0, 3] = 50.0
    layer.router.kernel.set_value(jnp.asarray(kernel, jnp.float32))
    x = np.random.default_rng(0).standard_normal((1, tokens, 4))
    x[..., 0] = 1.0
    got, used = mixed(layer, jnp.asarray(x, jnp.float32))
    assert used.load.tolist() == [0, 0, 0, tokens, 0]
    part = {n: np.asarray(getattr(layer.experts, n).kernel[3], np.float64) for n in _NAMES}
    gate = x @ part["gate"]
    want = (gate / (1 + np.exp(-gate)) * (x @ part["up"])) @ part["down"]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


_NAMES = ("gate", "up", "down")


def test_another_ragged_product_gives_the_same():
    layer = MixtureOfExperts(4, Experts(count=3, top_k=2, hidden=6), std=0.8, rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(1), (2, 5, 4))
    want, _ = mixed(layer, x)
    calls = []

    def dense(x, kernels, sizes):
        """Every expert for every row, and the right one taken."""
        calls.append(x.shape)
        expert = jnp.repeat(jnp.arange(len(sizes)), sizes, total_repeat_length=len(x))
        return jnp.einsum("md,mdf->mf", x, kernels[expert])

    for name in _NAMES:
        getattr(layer.experts, name).ragged_dot = dense
    got, _ = mixed(layer, x)
    assert calls == [(20, 4), (20, 4), (20, 6)]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_gradients_reach_every_chosen_expert_and_the_router():
    layer = MixtureOfExperts(4, Experts(count=3, top_k=2, hidden=6), std=0.8, rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(1), (1, 9, 4))

    @nnx.jit
    def loss(layer, x):
        return (layer(x, constrain=same)[0] ** 2).sum()

    grads = nnx.jit(nnx.grad(loss))(layer, x)
    epsilon = 1e-2
    for name in ("experts", "router"):
        part = grads["experts"]["up"] if name == "experts" else grads["router"]
        module = layer.experts.up if name == "experts" else layer.router
        got = np.asarray(part["kernel"][...])
        index = np.unravel_index(np.argmax(np.abs(got)), got.shape)
        values = []
        for sign in (1, -1):
            other = nnx.clone(layer)
            target = other.experts.up if name == "experts" else other.router
            target.kernel.set_value(module.kernel[...].at[index].add(sign * epsilon))
            values.append(float(loss(other, x)))
        # Central differences: their error is of the order of epsilon squared.
        want = (values[0] - values[1]) / (2 * epsilon)
        np.testing.assert_allclose(got[index], want, rtol=2e-2)
