# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dovetail_models import Attention, Layer, Mlp, Norm
from dovetail_models.layers.block import Block

pytestmark = pytest.mark.thorough

ATTENTION = Attention(heads=2, kv_heads=1, head_dim=3, rope=None)


def normed(norm, x):
    scale = np.asarray(norm.scale[...], np.float64)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale


@pytest.mark.parametrize("norms", ["pre", "sandwich", "post"])
def test_where_the_norms_are(norms):
    layer = Layer(
        attention=ATTENTION, mlp=Mlp(hidden=4, gated=False, activation="relu"), norms=norms
    )
    block = Block(5, layer, norm=Norm(), std=0.7, rngs=nnx.Rngs(0))
    keys = iter(jax.random.split(jax.random.key(1), 30))
    noise = lambda p: jax.random.normal(next(keys), p.shape)  # noqa: E731
    nnx.update(block, jax.tree.map(noise, nnx.state(block, nnx.Param)))
    seen = {}

    def attend(q, k, v, **options):
        seen["q"] = q
        return q

    x = np.random.default_rng(0).standard_normal((1, 3, 5))
    got, kv, used = block(
        jnp.asarray(x, jnp.float32), angles=None, attend=attend, constrain=lambda x, names: x
    )
    assert kv is None
    assert used is None
    kernel = {n: np.asarray(getattr(block.attn, n).kernel[...], np.float64) for n in "qo"}
    up, down = (np.asarray(p.kernel[...], np.float64) for p in (block.mlp.up, block.mlp.down))
    attn = lambda x: x @ kernel["q"] @ kernel["o"]  # noqa: E731
    mlp = lambda x: np.maximum(x @ up, 0) @ down  # noqa: E731
    if norms == "post":
        want = normed(block.attn_norm, x + attn(x))
        want = normed(block.mlp_norm, want + mlp(want))
    else:
        post = norms == "sandwich"
        out = attn(normed(block.attn_norm, x))
        want = x + (normed(block.attn_post_norm, out) if post else out)
        out = mlp(normed(block.mlp_norm, want))
        want = want + (normed(block.mlp_post_norm, out) if post else out)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
