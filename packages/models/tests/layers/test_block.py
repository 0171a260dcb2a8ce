# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dovetail_models import Attention, Layer, Mlp, Norm, Rope
from dovetail_models.layers.block import Block, SelfAttention
from dovetail_models.layers.rope import rope_angles

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


CONFIG = {"heads": 6, "kv_heads": 2, "head_dim": 4, "rope": Rope(theta=50.0)}


@pytest.mark.parametrize("qk_norm", [False, True])
def test_q_and_k_are_normed_then_turned_and_v_is_neither(qk_norm):
    attention = Attention(**CONFIG, qk_norm=qk_norm, window=3)
    layer = SelfAttention(5, attention, norm=Norm(eps=1e-3), std=0.7, rngs=nnx.Rngs(0))
    scales = {"q": np.array([0.5, 2.0, -1.0, 3.0]), "k": np.array([1.5, -0.5, 0.7, 2.0])}
    if qk_norm:
        layer.q_norm.scale.set_value(jnp.asarray(scales["q"], jnp.float32))
        layer.k_norm.scale.set_value(jnp.asarray(scales["k"], jnp.float32))
    x = np.random.default_rng(0).standard_normal((1, 3, 5))
    seen = {}

    def attend(q, k, v, **options):
        seen.update(q=q, k=k, v=v, **options)
        return jnp.broadcast_to(v[:, :, :1], q.shape)

    angles = rope_angles(attention.rope, 4, positions=jnp.arange(3)[None])
    out, kv = layer(
        jnp.asarray(x, jnp.float32), angles=angles, attend=attend, constrain=lambda x, names: x
    )
    assert kv is None
    assert (seen["window"], seen["scale"], seen["sinks"]) == (3, 0.5, None)
    for name, heads in (("q", 6), ("k", 2), ("v", 2)):
        kernel = np.asarray(getattr(layer, name).kernel[...], np.float64)
        want = (x @ kernel).reshape(1, 3, heads, 4)
        if name != "v":
            want = expected(want, scales[name] if qk_norm else None)
        np.testing.assert_allclose(seen[name], want, rtol=1e-5, atol=1e-5)
    mixed = np.repeat(np.asarray(seen["v"], np.float64)[:, :, :1], 6, axis=2).reshape(1, 3, 24)
    np.testing.assert_allclose(out, mixed @ np.asarray(layer.o.kernel[...]), rtol=1e-5, atol=1e-5)


def expected(x, scale):
    """x normed per head and turned as complex numbers."""
    if scale is not None:
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-3) * scale
    phase = np.arange(3)[:, None] * 50.0 ** (-np.array([0, 2]) / 4)
    pairs = (x[..., :2] + 1j * x[..., 2:]) * np.exp(1j * phase)[None, :, None]
    return np.concatenate([pairs.real, pairs.imag], axis=-1)
