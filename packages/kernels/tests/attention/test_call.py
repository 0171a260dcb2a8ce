# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What follows from the facts of a call."""

import jax
import jax.numpy as jnp
import pytest

from dovetail_kernels.attention.plan import plan_attention


def call_of(dtype=jnp.float32, **options):
    x = jax.ShapeDtypeStruct((1, 4, 2, 8), dtype)
    return plan_attention(x, x, x, **options).call


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_logits_are_at_least_float32(dtype):
    assert call_of(dtype).inner_dtype == jnp.float32


def test_float64_stays_float64():
    with jax.enable_x64(True):
        assert call_of(jnp.float64).inner_dtype == jnp.float64


def test_masked_is_that_a_query_may_not_see_a_key():
    ids = jax.ShapeDtypeStruct((1, 4), jnp.int32)
    lengths = jax.ShapeDtypeStruct((1,), jnp.int32)
    conditions = {"causal": True, "window": 3, "segment_ids": ids, "kv_lengths": lengths}
    assert not call_of(soft_cap=1.0, positions=ids, stats=True).masked
    for name, value in conditions.items():
        assert call_of(**{name: value}).masked, name
