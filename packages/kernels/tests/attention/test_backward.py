# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The backward loops alone, given out and lse that another forward made."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_kernels.arrays import cut
from dovetail_kernels.attention.backward import backward
from dovetail_kernels.attention.call import Inputs
from dovetail_kernels.attention.plan import plan_attention

pytestmark = pytest.mark.thorough

T = 27


def formula(q, k, v, bias, see, dout, dlse):
    """Gradients in float64 for one head per kv head; also out and lse, which backward needs.

    The bias is one for all rows.
    """
    scale = 1 / np.sqrt(q.shape[-1])
    logits = np.where(see, scale * np.einsum("btnh,bsnh->bnts", q, k) + bias, -np.inf)
    lse = np.log(np.exp(logits).sum(-1))
    p = np.exp(logits - lse[..., None])
    out = np.einsum("bnts,bsnh->btnh", p, v)
    inner = np.einsum("btnh,btnh->bnt", dout, out) - dlse.swapaxes(1, 2)
    ds = p * (np.einsum("btnh,bsnh->bnts", dout, v) - inner[..., None])
    dq = scale * np.einsum("bnts,bsnh->btnh", ds, k)
    dk = scale * np.einsum("bnts,btnh->bsnh", ds, q)
    dv, dbias = np.einsum("bnts,btnh->bsnh", p, dout), ds.sum(0, keepdims=True)
    return out, lse.swapaxes(1, 2), (dq, dk, dv, dbias)


@pytest.mark.parametrize("sizes", [(16, 8), (8, 32)])
def test_gradients_from_out_and_lse_in_blocks_of_any_size(sizes):
    rng = np.random.default_rng(0)
    q, k, v, dout = rng.standard_normal((4, 2, T, 3, 8))
    dlse, bias = rng.standard_normal((2, T, 3)), rng.standard_normal((1, 3, T, T))
    segments = rng.integers(0, 3, (2, T))
    see = (segments[:, :, None] == segments[:, None, :]) & np.tri(T, dtype=bool)
    out, lse, expected = formula(q, k, v, bias, see[:, None], dout, dlse)
    q, k, v, bias, dout, out, lse, dlse = (
        jnp.asarray(x, jnp.float32) for x in (q, k, v, bias, dout, out, lse, dlse)
    )
    ids = jnp.asarray(segments, jnp.int32)
    call = plan_attention(q, k, v, causal=True, segment_ids=ids, bias=bias).call
    inputs = Inputs(q, k, v, segment_ids=(ids, ids), bias=bias)
    delta = (dout * out).sum(-1) - dlse
    cuts = cut(T, sizes[0]), cut(T, sizes[1])
    found = jax.jit(lambda *x: backward(call, *x, *cuts))(inputs, lse, delta, dout)
    # Sums of 27 products of 8, with lse and delta rounded to float32.
    for value, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-4, atol=2e-5)
