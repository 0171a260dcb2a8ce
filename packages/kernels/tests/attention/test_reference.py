# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What the formula alone can do, and what it costs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_kernels.attention.api import attention
from dovetail_kernels.attention.plan import plan_attention
from dovetail_kernels.attention.reference import REFERENCE

H = 1e-5
RNG = np.random.default_rng(0)
Q, K, V = (jnp.asarray(RNG.standard_normal((1, 5, n, 4)), jnp.float32) for n in (2, 1, 1))


@pytest.mark.thorough
def test_forward_mode_over_reverse_is_the_slope_of_the_gradient():
    with jax.enable_x64(True):
        rng = np.random.default_rng(1)
        x, along = ([jnp.asarray(rng.standard_normal(a.shape)) for a in (Q, K, V)] for _ in "ab")
        options = {"causal": True, "kv_lengths": jnp.asarray([4], jnp.int32), "soft_cap": 2.0}
        call = functools.partial(attention, impl="reference", **options)
        gradient = jax.jit(jax.grad(lambda x: jnp.sin(call(*x)).sum()))
        found = jax.jit(lambda x, along: jax.jvp(gradient, (x,), (along,))[1])(x, along)
        up, down = (gradient([a + e * b for a, b in zip(x, along, strict=True)]) for e in (H, -H))
        for slope, high, low in zip(found, up, down, strict=True):
            # Central differences: the square of the step, and rounding over the step.
            np.testing.assert_allclose(slope, (high - low) / (2 * H), rtol=1e-6, atol=1e-8)


def test_refuses_nothing():
    ids = jnp.zeros((1, 5), jnp.int32)
    plan = plan_attention(
        Q, K, V[..., :3], window=2, segment_ids=ids, positions=ids, soft_cap=1.0, stats=True
    )
    assert REFERENCE.refuse(plan.call) is None


@pytest.mark.thorough
def test_work_is_what_xla_counts():
    q = jax.ShapeDtypeStruct((2, 64, 4, 32), jnp.float32)
    k = v = jax.ShapeDtypeStruct((2, 96, 2, 32), jnp.float32)
    work = REFERENCE.work(plan_attention(q, k, v).call)
    compiled = jax.jit(functools.partial(attention, impl="reference")).lower(q, k, v).compile()
    # XLA adds a few operations for each of the 64 · 96 logits to their 2 · 64 in products.
    assert work.flops <= compiled.cost_analysis()["flops"] <= 1.3 * work.flops
    # It reads operands of its loops more than once, and writes some matrices not at all.
    assert 0.5 * work.bytes <= compiled.cost_analysis()["bytes accessed"] <= 2 * work.bytes
