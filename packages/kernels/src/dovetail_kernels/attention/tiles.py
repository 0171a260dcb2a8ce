# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Blocks of queries and keys as operands of products: cut out of the arrays and put back.

Letters of axes: b batch, k kv heads, g query heads of each, i queries of a block, j its keys, h
head_dim or value_dim, r batch or 1. Query heads with a common kv head are rows of one matrix, g·i,
so keys are never repeated. Batch and heads remain separate axes throughout, so a partitioner can
split them.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dovetail_kernels.arrays import Cut


def filled(
    x: Float[Array, "b t n h"], one: Cut, value: float = 0.0
) -> Float[Array, "b filled n h"]:
    """Pads x with `value` to whole blocks.

    Args:
        x: Array per query or key.
        one: Blocks of its second axis.
        value: Content of the padding.
    """
    pads = (0, 0), (0, one.size * one.blocks - x.shape[1]), (0, 0), (0, 0)
    return jnp.pad(x, pads, constant_values=value)


def query_block(
    x: Float[Array, "b t n h"], i: Int[Array, ""], one: Cut, kv_heads: int
) -> Float[Array, "b k gi h"]:
    """Returns block i of the queries.

    Args:
        x: Array per query, padded to whole blocks.
        i: Number of the block.
        one: Blocks of queries.
        kv_heads: Number of key-value heads.
    """
    x = jax.lax.dynamic_slice_in_dim(x, i * one.size, one.size, axis=1)
    b, size, n, h = x.shape
    x = x.reshape(b, size, kv_heads, n // kv_heads, h).transpose(0, 2, 3, 1, 4)
    return x.reshape(b, kv_heads, -1, h)


def put_query_block(
    whole: Float[Array, "b t n h"], x: Float[Array, "b k gi h"], i: Int[Array, ""], one: Cut
) -> Float[Array, "b t n h"]:
    """Returns `whole` with x as its block i of queries.

    Args:
        whole: Array per query, padded to whole blocks.
        x: The block, as `query_block` returns it.
        i: Number of the block.
        one: Blocks of queries.
    """
    b, k, _, h = x.shape
    x = x.reshape(b, k, -1, one.size, h).transpose(0, 3, 1, 2, 4).reshape(b, one.size, -1, h)
    return jax.lax.dynamic_update_slice_in_dim(whole, x.astype(whole.dtype), i * one.size, axis=1)


def key_block(
    x: Float[Array, "_ s k h"],
    ids: Int[Array, " r"],
    one: Cut,
    kv_heads: int,
    row: Array | None = None,
) -> Float[Array, "_ _ j _"]:
    """Returns block ids[b] of each row b. A single id serves all rows.

    Args:
        x: Array per key, padded to whole blocks.
        ids: Numbers of the blocks, one per row or one in all.
        one: Blocks of keys.
        kv_heads: Number of heads of the result. 1 joins all heads to one vector.
        row: Number of the only row to take. None for all.
    """

    def by_head(x: Array) -> Array:
        return x.reshape(*x.shape[:-2], kv_heads, -1).swapaxes(-2, -3)

    if row is not None:
        zero = jnp.zeros_like(row)  # of its dtype, also under x64
        start = row, ids[0] * one.size, zero, zero
        return by_head(jax.lax.dynamic_slice(x, start, (1, one.size, *x.shape[2:])))

    def taken(x: Array, start: Array) -> Array:
        return by_head(jax.lax.dynamic_slice_in_dim(x, start, one.size, x.ndim - 3))

    starts = ids * one.size
    return taken(x, starts[0]) if len(ids) == 1 else jax.vmap(taken)(x, starts)


def add_key_block(
    whole: Float[Array, "b s k h"], x: Float[Array, "b k j h"], ids: Int[Array, " r"], one: Cut
) -> Float[Array, "b s k h"]:
    """Returns `whole` with x added to its blocks `ids`, as taken by `key_block`.

    Args:
        whole: Array per key, padded to whole blocks.
        x: The block, as `key_block` returns it.
        ids: Numbers of the blocks, one per row or one in all.
        one: Blocks of keys.
    """

    def added(whole: Array, x: Array, start: Array) -> Array:
        axis = whole.ndim - 3
        x = x.swapaxes(-2, -3) + jax.lax.dynamic_slice_in_dim(whole, start, one.size, axis)
        return jax.lax.dynamic_update_slice_in_dim(whole, x, start, axis)

    starts = ids * one.size
    return added(whole, x, starts[0]) if len(ids) == 1 else jax.vmap(added)(whole, x, starts)
