# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Blocks of bias and mask, the arrays with an entry for each query and key.

Each of their axes [batch, heads, T, S] may have size 1. Such an axis is never repeated in memory:
it is one block in every block, and its gradient is a sum.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

from dovetail_kernels.arrays import Cut


class Place(NamedTuple):
    """A block of queries, and one of keys for each row.

    Attributes:
        i: Number of the block of queries.
        ids: Numbers of the blocks of keys, one per row or one in all.
        queries: Blocks of queries.
        keys: Blocks of keys.
    """

    i: Array
    ids: Int[Array, " r"]
    queries: Cut
    keys: Cut


def filled(x: Shaped[Array, "b n t s"], queries: Cut, keys: Cut) -> Shaped[Array, "b n t2 s2"]:
    """Pads T and S to whole blocks, with zeros or False. An axis of size 1 stays.

    Args:
        x: Bias or mask [b, n, t, s].
        queries: Blocks of queries.
        keys: Blocks of keys.
    """
    ends = (cut.size * cut.blocks - n for n, cut in zip(x.shape[2:], (queries, keys), strict=True))
    pads = [(0, 0 if n == 1 else end) for n, end in zip(x.shape[2:], ends, strict=True)]
    return jnp.pad(x, ((0, 0), (0, 0), *pads))


def block(x: Shaped[Array, "b n t s"], at: Place) -> Shaped[Array, "_ n i j"]:
    """Returns the block at a place of a bias or mask that is padded to whole blocks."""
    start, starts, sizes = _starts(x, at)

    def taken(x: Array, column: Array) -> Array:
        return jax.lax.dynamic_slice(x, (jnp.zeros_like(start), start, column), sizes)

    if len(starts) == 1:
        return jax.vmap(taken, in_axes=(0, None))(x, starts[0])
    return (
        jax.vmap(taken)(x, starts) if x.shape[0] != 1 else jax.vmap(taken, (None, 0))(x[0], starts)
    )


def add_block(
    whole: Float[Array, "b n t s"], x: Float[Array, "r n i j"], at: Place
) -> Float[Array, "b n t s"]:
    """Returns `whole` with x added to its block, as taken by `block`.

    Args:
        whole: Sum of the gradient of a bias, padded to whole blocks.
        x: Addend for each row. Other axes have the sizes of the block.
        at: The block; `ids` is one in all for a bias that all rows share (see `bounds`).
    """
    start, starts, sizes = _starts(whole, at)

    def added(whole: Array, x: Array, column: Array) -> Array:
        place = (jnp.zeros_like(start), start, column)
        x = x + jax.lax.dynamic_slice(whole, place, sizes)
        return jax.lax.dynamic_update_slice(whole, x, place)

    if len(starts) == 1:
        x = x if whole.shape[0] != 1 else x.sum(0, keepdims=True)
        return jax.vmap(added, in_axes=(0, 0, None))(whole, x, starts[0])
    return jax.vmap(added)(whole, x, starts)


def summary(
    mask: Bool[Array, "b n t s"], queries: Cut, keys: Cut
) -> tuple[Bool[Array, "_ b _"], Bool[Array, "_ b _"]]:
    """Returns masks of block pairs [blocks of queries or 1, b, blocks of keys or 1]: any, all.

    Args:
        mask: Mask, padded to whole blocks.
        queries: Blocks of queries.
        keys: Blocks of keys.
    """
    b, n, t, s = mask.shape
    sizes = (1 if t == 1 else queries.size), (1 if s == 1 else keys.size)
    blocks = mask.reshape(b, n, t // sizes[0], sizes[0], s // sizes[1], sizes[1])
    return blocks.any((1, 3, 5)).swapaxes(0, 1), blocks.all((1, 3, 5)).swapaxes(0, 1)


def add_columns(
    dbias: Float[Array, "b n t s"] | None, ds: Float[Array, "b2 k j gi"], at: Place
) -> Float[Array, "b n t s"] | None:
    """Returns `dbias` with the gradient `ds` of one block of logits, summed over axes of size 1.

    Args:
        dbias: Sum of the gradient of the bias, padded to whole blocks; None without a bias.
        ds: Gradient of the logits, with keys as rows.
        at: The block.
    """
    if dbias is None:
        return None
    b, _, j, _ = ds.shape
    x = ds.reshape(*ds.shape[:3], -1, at.queries.size).transpose(0, 1, 3, 4, 2)
    x = x.reshape(b, -1, at.queries.size, j)
    x = x.sum(tuple(axis for axis in (1, 2, 3) if dbias.shape[axis] == 1), keepdims=True)
    return add_block(dbias, x, at)


def by_group(x: Shaped[Array, "b n i j"], kv_heads: int) -> Shaped[Array, "b _ _ i j"]:
    """Splits heads into [kv_heads, heads per kv head]. A single head serves all."""
    b, n, *rest = x.shape
    return x.reshape(b, 1, 1, *rest) if n == 1 else x.reshape(b, kv_heads, n // kv_heads, *rest)


def _starts(x: Array, at: Place) -> tuple[Array, Array, tuple[int, int, int]]:
    """Returns the start in T, the starts in S, and the sizes of blocks of one row."""
    _, heads, t, s = x.shape
    rows, columns = at.queries.size, at.keys.size
    start = jnp.zeros_like(at.i) if t == 1 else at.i * rows
    starts = jnp.zeros_like(at.ids[:1]) if s == 1 else at.ids * columns
    return start, starts, (heads, 1 if t == 1 else rows, 1 if s == 1 else columns)
