# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""One query per row: all kv heads as one, against the suite and without copies of keys."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_kernels.attention import blocked, single
from dovetail_kernels.attention.api import attention
from dovetail_kernels.attention.call import Inputs
from dovetail_kernels.attention.plan import plan_attention
from dovetail_kernels.testing.attention import Case, check

CASE = Case(
    name="one query",
    needs=frozenset(),
    batch=3,
    queries=1,
    keys=150,
    heads=6,
    kv_heads=3,
    value_dim=5,
    kv_lengths=True,
    stats=True,
)
OPTIONS = {
    "lengths": {},
    "mask of heads, bias of heads, sinks": {"mask": "ns", "bias": "ns", "sinks": True},
    "bias of rows": {"bias": "bs", "mask": "bs", "poison": "mask", "soft_cap": 2.0},
    "window": {"causal": True, "positions": "pair", "window": (60, 0), "kv_lengths": False},
    "bfloat16": {"dtype": "bfloat16", "segments": "pair"},
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", OPTIONS)
def test_suite(name):
    case = dataclasses.replace(CASE, **OPTIONS[name])
    check(functools.partial(attention, impl="blocked"), case, grad=name == "bias of rows")


@pytest.mark.thorough
def test_joined_products_are_those_of_each_head():
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, t, n, h)) for t, n, h in ((1, 6, 4), (9, 3, 4), (9, 3, 5)))
    call = plan_attention(*(jnp.asarray(x, jnp.float32) for x in (q, k, v))).call
    joined = single.joined(call)
    assert (joined.heads, joined.kv_heads, joined.head_dim, joined.value_dim) == (6, 1, 12, 15)
    wide = single.join(call, Inputs(*(jnp.asarray(x, jnp.float32) for x in (q, k, v)))).q
    products = np.einsum("btnc,bsc->bnts", wide, k.reshape(2, 9, 12))
    expected = np.einsum("btnh,bsnh->bnts", q, k.repeat(2, axis=2))
    # Sums of 4 products, and zeros.
    np.testing.assert_allclose(products, expected, rtol=1e-5, atol=1e-6)
    out = np.einsum("bnts,bsc->btnc", products, v.reshape(2, 9, 15)).astype(np.float32)
    expected = np.einsum("bnts,bsnh->btnh", products, v.repeat(2, axis=2))
    np.testing.assert_allclose(single.split(call, jnp.asarray(out)), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.thorough
def test_keys_are_not_copied():
    """Only blocks of one row are, for a batch of 16 MiB of keys and values."""
    q = jax.ShapeDtypeStruct((8, 1, 8, 64), jnp.float32)
    k = jax.ShapeDtypeStruct((8, 512, 8, 64), jnp.float32)
    lengths = jax.ShapeDtypeStruct((8,), jnp.int32)

    def run(q, k, v, lengths):
        return attention(q, k, v, kv_lengths=lengths, impl="blocked")

    compiled = jax.jit(run).lower(q, k, k, lengths).compile()
    block = 128 * 8 * 64 * 4
    # Keys and values of a block, their masked copies, and the results by row.
    assert compiled.memory_analysis().temp_size_in_bytes < 6 * block + 2 * 8 * 8 * 512 * 4


def test_the_flops_of_joined_heads_are_counted():
    q, k = (jax.ShapeDtypeStruct((1, t, n, 64), jnp.float32) for t, n in ((1, 8), (128, 4)))
    work = blocked.BLOCKED.work(plan_attention(q, k, k).call)
    assert work.flops == 2 * 8 * 128 * (4 * 128)
    compiled = jax.jit(functools.partial(attention, impl="blocked")).lower(q, k, k).compile()
    # Beside the products, some operations for each logit and output.
    assert work.flops <= compiled.cost_analysis()["flops"] <= 1.1 * work.flops
