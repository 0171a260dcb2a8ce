# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dovetail_models import Attention, Norm, Rope
from dovetail_models.layers.attention import SelfAttention
from dovetail_models.layers.rope import rope_angles

pytestmark = pytest.mark.thorough

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
