# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dovetail_models import LatentAttention, Rope, attention
from dovetail_models.layers.latent import LatentSelfAttention
from dovetail_models.layers.rope import rope_angles

pytestmark = pytest.mark.thorough

CONFIG = LatentAttention(
    heads=3, q_rank=6, kv_rank=5, nope_dim=3, rope_dim=4, v_dim=2, rope=Rope(theta=50.0), bias=True
)


@pytest.fixture
def layer():
    layer = LatentSelfAttention(7, CONFIG, std=0.6, rngs=nnx.Rngs(0))
    keys = iter(jax.random.split(jax.random.key(1), 20))
    noise = lambda param: jax.random.normal(next(keys), param.shape) * 0.5 + 0.3  # noqa: E731
    nnx.update(layer, jax.tree.map(noise, nnx.state(layer, nnx.Param)))
    return layer


@functools.partial(nnx.jit, static_argnames=("attend", "start"))
def call(layer, x, *, attend, kv=None, start=0):
    where = jnp.broadcast_to(start + jnp.arange(x.shape[1]), x.shape[:2])
    attend = functools.partial(attend, causal=True, positions=where, segment_ids=None)
    angles = rope_angles(CONFIG.rope, CONFIG.rope_dim, positions=where)
    return layer(x, angles=angles, attend=attend, constrain=lambda x, names: x, kv=kv)


def test_over_a_cache_it_is_absorbed_and_gives_the_same(layer):
    x = jnp.asarray(np.random.default_rng(2).standard_normal((2, 6, 7)), jnp.float32)
    whole, none = call(layer, x, attend=attention)
    assert none is None
    shapes = []

    def recorded(q, k, v, **options):
        shapes.append((q.shape, k.shape, v.shape))
        return attention(q, k, v, **options)

    key, value = CONFIG.cached
    assert value is None
    kv = jnp.zeros((2, 6, *key)), None
    first, kv = call(layer, x[:, :4], attend=recorded, kv=kv)
    last, kv = call(layer, x[:, 4:], attend=recorded, kv=kv, start=4)
    assert kv[1] is None
    # One key of rank + rope numbers and one value of rank, for all heads.
    assert shapes[0] == ((2, 4, 3, 9), (2, 4, 1, 9), (2, 4, 1, 5))
    both = jnp.concatenate([first, last], axis=1)
    # Two orders of the same float32 products.
    np.testing.assert_allclose(both, whole, rtol=0, atol=5e-6 * float(jnp.abs(whole).max()))


def test_over_a_cache_the_value_is_the_head_of_the_key(layer):
    seen = []

    def attend(q, k, v, *, kv, **options):
        seen.append((k, v))
        return attention(q, k, v, kv=kv, **options)

    x = jnp.asarray(np.random.default_rng(3).standard_normal((2, 4, 7)), jnp.float32)
    layer(
        x,
        angles=rope_angles(CONFIG.rope, CONFIG.rope_dim, positions=jnp.arange(4)[None]),
        attend=functools.partial(attend, causal=True, positions=None, segment_ids=None),
        constrain=lambda x, names: x,
        kv=(jnp.zeros((2, 4, *CONFIG.cached[0])), None),
    )
    ((k, v),) = seen
    np.testing.assert_array_equal(v, k[..., : CONFIG.value_width])


def test_over_a_cache_an_adapter_on_kv_b_is_refused(layer):
    class Adapted(nnx.Linear):
        pass

    layer.kv_b = Adapted(5, 15, rngs=nnx.Rngs(0))
    kv = (jnp.zeros((1, 2, 1, 9)), None)
    with pytest.raises(ValueError, match="kv_b must be a plain") as error:
        call(layer, jnp.ones((1, 2, 7)), attend=attention, kv=kv)
    assert "got Adapted" in str(error.value)
    assert "Merge its adapters first" in str(error.value)
