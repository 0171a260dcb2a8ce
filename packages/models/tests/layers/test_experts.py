# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dovetail_models import Experts
from dovetail_models.layers.experts import ExpertLinear, MixtureOfExperts

_NAMES = ("gate", "up", "down")


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


@pytest.mark.thorough
@pytest.mark.parametrize("tokens", [1, 7])
def test_no_token_is_dropped_even_if_all_choose_one_expert(tokens):
    layer = MixtureOfExperts(4, Experts(count=5, top_k=1, hidden=3), std=1.0, rngs=nnx.Rngs(0))
    kernel = np.zeros((4, 5))
    kernel[0, 3] = 50.0
    layer.router.kernel.set_value(jnp.asarray(kernel, jnp.float32))
    x = np.random.default_rng(0).standard_normal((1, tokens, 4))
    x[..., 0] = 1.0
    got, used = mixed(layer, jnp.asarray(x, jnp.float32))
    assert used.balance.load.tolist() == [0, 0, 0, tokens, 0]
    part = {n: np.asarray(getattr(layer.experts, n).kernel[3], np.float64) for n in _NAMES}
    gate = x @ part["gate"]
    want = (gate / (1 + np.exp(-gate)) * (x @ part["up"])) @ part["down"]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.thorough
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


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_given_experts_are_mixed_by_the_weights_of_the_router():
    config = Experts(
        count=5, top_k=2, hidden=3, shared=2, score="sigmoid", scale=2.5, selection_bias=True
    )
    layer = MixtureOfExperts(4, config, std=0.9, rngs=nnx.Rngs(0))
    rng = np.random.default_rng(1)
    x = rng.standard_normal((2, 3, 4))
    given = rng.permuted(np.tile(np.arange(5), (2, 3, 1)), axis=-1)[..., :2].astype(np.int32)
    call = nnx.jit(lambda layer, x, ids: layer(x, constrain=same, expert_ids=ids))
    got, used = call(layer, jnp.asarray(x, jnp.float32), given)
    np.testing.assert_array_equal(used.expert_ids, given)
    assert used.balance.load.tolist() == np.bincount(given.ravel(), minlength=5).tolist()
    flat = nnx.to_flat_state(nnx.state(layer, nnx.Param))
    params = {".".join(map(str, p)): np.asarray(v[...], np.float64) for p, v in flat}

    def block(name, x, *expert):
        gate, up, down = (params[f"{name}.{part}.kernel"][expert] for part in _NAMES)
        hidden = x @ gate
        return (hidden / (1 + np.exp(-hidden)) * (x @ up)) @ down

    scores = 1 / (1 + np.exp(-x @ params["router.kernel"]))
    want = np.stack([block("shared", row) for row in x.reshape(-1, 4)]).reshape(x.shape)
    for row, token in np.ndindex(2, 3):
        ids = given[row, token]
        weights = scores[row, token, ids]
        for weight, e in zip(2.5 * weights / weights.sum(), ids, strict=True):
            want[row, token] += weight * block("experts", x[row, token], e)
    # float32 sums of at most 4 products, relative to values of the order of 1.
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.thorough
def test_a_given_id_that_names_no_expert_gives_nan():
    layer = MixtureOfExperts(4, Experts(count=3, top_k=1, hidden=2), std=0.9, rngs=nnx.Rngs(0))
    call = nnx.jit(lambda layer, x, ids: layer(x, constrain=same, expert_ids=ids)[0])
    got = call(layer, jnp.ones((1, 3, 4)), jnp.array([[[3], [1], [-1]]]))
    assert np.isnan(got).all(-1).tolist() == [[True, False, True]]


@pytest.mark.thorough
def test_a_symbolic_batch_is_exported():
    layer = MixtureOfExperts(4, Experts(count=3, top_k=2, hidden=6), std=0.8, rngs=nnx.Rngs(0))
    (rows,) = jax.export.symbolic_shape("b")
    abstract = jax.ShapeDtypeStruct((rows, 5, 4), jnp.float32)
    exported = jax.export.export(jax.jit(lambda x: layer(x, constrain=same)[0]))(abstract)
    for count in (1, 3):
        x = jax.random.normal(jax.random.key(count), (count, 5, 4))
        # Other shapes, other orders of the sums of 6 products.
        np.testing.assert_allclose(exported.call(x), mixed(layer, x)[0], rtol=1e-5, atol=1e-5)
