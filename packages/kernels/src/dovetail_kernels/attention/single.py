# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""One query per row on a CPU, as in decoding: products that read keys and values as stored.

XLA's CPU products need each head's keys in one piece, and copy [S, heads, width] to [heads, S,
width] before them. With a single query this copy costs more than the product. Here all kv heads of
a key are one vector of heads * width, and each query has zeros for the heads of others:

    q kᵀ = [q_0 0; 0 q_1] [k_0 k_1]ᵀ

In other words, this is a call with one kv head. It has kv_heads times the FLOPs, on numbers that
are in the cache. Results of values are as wide, and each head keeps its own part. A non-finite key
or value makes all heads of the rows that see it NaN.

benchmarks/attention.py measures it beside `jax.nn`, which copies.
"""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from dovetail_kernels.attention.call import AttentionCall, Inputs


def joined(call: AttentionCall) -> AttentionCall:
    """Returns the call with all kv heads as one."""
    return dataclasses.replace(
        call,
        kv_heads=1,
        head_dim=call.kv_heads * call.head_dim,
        value_dim=call.kv_heads * call.value_dim,
    )


def join(call: AttentionCall, inputs: Inputs) -> Inputs:
    """Returns the arrays of `joined(call)`, with keys and values unchanged.

    `tiles.key_block` joins their heads. Before the loops, XLA would copy both for this.
    """
    q = _by_group(call, inputs.q)[:, :, :, :, None, :]
    own = jnp.eye(call.kv_heads, dtype=bool)[None, None, :, None, :, None]
    q = jnp.where(own, q, 0).reshape(*inputs.q.shape[:3], -1)
    return inputs._replace(q=q)


def split(call: AttentionCall, out: Float[Array, "b t n wide"]) -> Float[Array, "b t n g"]:
    """Returns the part of the output of `joined(call)` that belongs to each head."""
    out = _by_group(call, out)
    out = out.reshape(*out.shape[:4], call.kv_heads, call.value_dim)
    parts = [out[:, :, k, :, k] for k in range(call.kv_heads)]
    return jnp.concatenate(parts, axis=2)


def _by_group(call: AttentionCall, x: Float[Array, "b t n h"]) -> Float[Array, "b t k g h"]:
    return x.reshape(*x.shape[:2], call.kv_heads, call.heads // call.kv_heads, x.shape[3])
