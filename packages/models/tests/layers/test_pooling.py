# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dovetail_models import AttentionPool, Mlp, Norm, TokenPool
from dovetail_models.layers.pooling import pooler_layer

NORM = Norm(kind="layer", eps=1e-6)
MLP = Mlp(hidden=10, activation="gelu_tanh", gated=False, bias=True)


def layer(pool):
    return pooler_layer(8, pool, norm=NORM, std=0.5, rngs=nnx.Rngs(2))


def unconstrained(x, names):
    return x


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(0).standard_normal((2, 5, 8)).astype(np.float32)


@pytest.mark.thorough
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("tanh", [False, True])
def test_a_token_is_projected(x, last, tanh):
    pooler = layer(TokenPool(width=3, last=last, tanh=tanh))
    pooler.dense.bias[...] = jnp.asarray([0.1, -0.2, 0.3])
    kernel = np.asarray(pooler.dense.kernel[...], np.float64)
    want = x[:, -1 if last else 0] @ kernel + [0.1, -0.2, 0.3]
    got = pooler(jnp.asarray(x), constrain=unconstrained)
    np.testing.assert_allclose(got, np.tanh(want) if tanh else want, atol=2e-6)


@pytest.mark.thorough
def test_a_probe_that_sees_all_tokens_alike_pools_their_mean(x):
    # With q = 0 the weights are equal, and with down = 0 the feed-forward block adds its bias.
    pooler = layer(AttentionPool(heads=2, mlp=MLP))
    for part in (pooler.q.kernel, pooler.mlp.down.kernel):
        part[...] = jnp.zeros_like(part[...])
    kernels = [np.asarray(part.kernel[...], np.float64) for part in (pooler.v, pooler.o)]
    got = pooler(jnp.asarray(x), constrain=unconstrained)
    np.testing.assert_allclose(got, x.mean(1) @ kernels[0] @ kernels[1], atol=5e-6)


@pytest.mark.thorough
def test_the_order_of_tokens_does_not_matter_to_a_probe(x):
    pooler = layer(AttentionPool(heads=4, mlp=MLP))
    want = pooler(jnp.asarray(x), constrain=unconstrained)
    got = pooler(jnp.asarray(x[:, ::-1]), constrain=unconstrained)
    # The same sums in another order.
    np.testing.assert_allclose(got, want, atol=2e-6)


def test_without_a_pool_there_is_no_layer():
    assert layer(None) is None
