# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Draws of one column per row of weights, in proportion to them.

The draw finds the position at which the running sum reaches a share of the whole weight, first
among sums of blocks, then within one block. It takes two random numbers per row. Gumbel noise takes
one per token, and a CPU needs longer to make them than for all else.
"""

import jax
import jax.numpy as jnp
from jax import Array

_BLOCK = 512  # tokens: about the root of a vocabulary, so that both searches are short


def draw(weights: Array, keys: Array) -> Array:
    """Draws a column of weights [B, V] for each row, in proportion: i32[B]."""
    rows, columns = weights.shape
    blocks = -(-columns // _BLOCK)
    padded = jnp.pad(weights, ((0, 0), (0, blocks * _BLOCK - columns)))
    padded = padded.reshape(rows, blocks, _BLOCK)
    bits = jax.vmap(lambda key: jax.random.bits(key, (2,), jnp.uint32))(keys)
    share = (bits >> 9).astype(jnp.float32) * 2.0**-23
    block = _reached(jnp.sum(padded, axis=2), share[:, 0])
    within = jnp.take_along_axis(padded, block[:, None, None], axis=1)[:, 0]
    return block * _BLOCK + _reached(within, share[:, 1])


def _reached(weights: Array, share: Array) -> Array:
    """Returns the first column of positive weight with a running sum above the share, i32[B].

    Running sums are rounded, and not in the order of their columns. They may rise over zeros, and
    the last need not be the largest.
    """
    sums = jnp.cumsum(weights, axis=1)
    above = sums > share[:, None] * sums[:, -1:]
    columns = jnp.arange(weights.shape[1], dtype=jnp.int32)[None]
    positive = weights > 0
    last = jnp.max(jnp.where(positive, columns, 0), axis=1)
    return jnp.min(jnp.where(positive & above, columns, last[:, None]), axis=1)
