# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Which blocks of keys a block of queries has to look at, and what is visible in one.

Each block is summarised by the least and the largest of its positions and segments. A pair of
blocks is left out if those alone show that no query of the one can see a key of the other. So
nothing visible is ever left out, for any positions and segments in any order; and where they are
sorted, as in packed rows, little is kept in vain: an interval then holds just what is in the block.

The kept blocks are listed by number, not as a range, so that holes cost nothing: a row of which the
early and the late part came together on one device (balanced ring attention), a shuffled one.
"""

import functools
import operator
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from dovetail_kernels.attention.call import AttentionCall, Inputs


class Cut(NamedTuple):
    """`blocks` of `size` cover an axis; the last may be partly filling."""

    size: int
    blocks: int


class Side(NamedTuple):
    """What decides visibility of queries, or of keys; None where no condition of the call needs it.

    Of all blocks [n, r, size], or of one [r, size], where r is batch, or 1 if all rows are alike.
    Filling repeats the last value, which widens no interval. key_index: in its row.
    """

    position: Int[Array, "*n r size"] | None
    segment: Int[Array, "*n r size"] | None
    key_index: Int[Array, "*n r size"] | None


class Visits(NamedTuple):
    """For each block of queries, or for one of them, the blocks of keys in the order of a visit.

    ids: first the blocks in which every pair is visible, then those in which some may be, then the
    others. whole, some: where the first and the second part end.
    """

    query: Side
    ids: Int[Array, "*n r nk"]
    whole: Int[Array, "*n r"]
    some: Int[Array, "*n r"]


class Bounds(NamedTuple):
    """ends: the keys of a row that count, by kv_lengths or since the rest is filling."""

    visits: Visits
    key: Side
    ends: Int[Array, " r"] | None

    @property
    def conditional(self) -> bool:
        """Whether a query may not see a key, of the filling too."""
        return any(x is not None for x in jax.tree.leaves((tuple(self.key), self.ends)))


def cut(length: int, largest: int) -> Cut:
    """Blocks of at most `largest`, as even as multiples of 8 allow; one, as it is, if that does."""
    if length <= largest:
        return Cut(length, 1)
    even = -(-length // -(-length // largest))
    size = min(largest, -(-even // 8) * 8)
    return Cut(size, -(-length // size))


def bounds(call: AttentionCall, inputs: Inputs, queries: Cut, keys: Cut) -> Bounds:
    """The conditions of a call by blocks, and which blocks are worth a visit."""
    ends = None
    if inputs.kv_lengths is not None:
        ends = jnp.minimum(inputs.kv_lengths, call.keys).astype(jnp.int32)
    elif keys.size * keys.blocks > call.keys:
        ends = jnp.full(1, call.keys, jnp.int32)
    query, key = _side(call, inputs, 0, queries), _side(call, inputs, 1, keys)
    key = key._replace(key_index=None if ends is None else _index(keys.size * keys.blocks, keys))
    some = whole = jnp.ones((queries.blocks, 1, keys.blocks), bool)
    for may, must in _conditions(call, query, key, ends):
        some, whole = some & may, whole & must
    order = jnp.where(whole, 0, jnp.where(some, 1, 2))
    ids = jnp.argsort(order, axis=-1, stable=True).astype(jnp.int32)
    counts = (x.sum(-1, dtype=jnp.int32) for x in (whole, some))
    return Bounds(Visits(query, ids, *counts), key, ends)


def visible(
    call: AttentionCall, at: Bounds, visit: Visits, n: Array | int
) -> Bool[Array, "r bq bk"]:
    """Which pairs are visible of one block of queries and the n-th that it visits.

    Rows visit in step, for as long as any of them has a block to see; another then comes to blocks
    of which it sees nothing.
    """
    key = jax.tree.map(lambda blocks: _taken(blocks, visit.ids[:, n]), at.key)
    conditions = []
    if visit.query.position is not None and key.position is not None:
        ahead = visit.query.position[:, :, None] - key.position[:, None, :]
        if call.causal:
            conditions.append(ahead >= 0)
        if call.window is not None:
            conditions.append(jnp.abs(ahead) < call.window)
    if visit.query.segment is not None and key.segment is not None:
        conditions.append(visit.query.segment[:, :, None] == key.segment[:, None, :])
    if key.key_index is not None and at.ends is not None:
        conditions.append((key.key_index < at.ends[:, None])[:, None, :])
    return functools.reduce(operator.and_, conditions)


def visits(call: AttentionCall, queries: Cut, keys: Cut) -> int:
    """How many blocks of keys all blocks of one row's queries visit; at most, if values decide."""
    if call.positions or not (call.causal or call.window is not None):
        return queries.blocks * keys.blocks
    first = np.arange(queries.blocks) * queries.size
    last = np.minimum(first + queries.size, call.queries) - 1
    window = call.keys if call.window is None else call.window
    until = last if call.causal else np.minimum(last + window - 1, call.keys - 1)
    return int((until // keys.size - np.maximum(first - window + 1, 0) // keys.size + 1).sum())


def _side(call: AttentionCall, inputs: Inputs, side: int, one: Cut) -> Side:
    length = (call.queries, call.keys)[side]
    position = segment = None
    if inputs.positions is not None and (call.causal or call.window is not None):
        position = _blocks(inputs.positions[side], one)
    elif call.causal or call.window is not None:
        position = _index(length, one)
    if inputs.segment_ids is not None:
        segment = _blocks(inputs.segment_ids[side], one)
    return Side(position, segment, key_index=None)


def _index(length: int, one: Cut) -> Int[Array, "n 1 size"]:
    return _blocks(jnp.arange(length, dtype=jnp.int32)[None, :], one)


def _blocks(ids: Int[Array, "r t"], one: Cut) -> Int[Array, "n r size"]:
    rows, length = ids.shape
    ids = jnp.pad(ids, ((0, 0), (0, one.size * one.blocks - length)), mode="edge")
    return ids.reshape(rows, one.blocks, one.size).swapaxes(0, 1)


def _taken(blocks: Array, ids: Int[Array, " r"]) -> Array:
    """Block ids[b] of each row b of [n, b, ...], or of all rows the one that they share."""
    if len(ids) == 1:
        return jax.lax.dynamic_index_in_dim(blocks, ids[0], 0, keepdims=False)
    if blocks.shape[1] == 1:
        return blocks[ids, 0]
    return jax.vmap(lambda row, i: row[i], in_axes=(1, 0))(blocks, ids)


def _conditions(
    call: AttentionCall, query: Side, key: Side, ends: Array | None
) -> Iterator[tuple[Array, Array]]:
    """For each condition the pairs of blocks, [nq, r, nk], in which it may hold, and must."""
    if query.position is not None and key.position is not None:
        (low_q, high_q), (low_k, high_k) = _intervals(query.position, key.position)
        if call.causal:
            yield high_q >= low_k, low_q >= high_k
        if call.window is not None:
            yield low_q - high_k < call.window, high_q - low_k < call.window
        if call.window is not None and not call.causal:
            yield low_k - high_q < call.window, high_k - low_q < call.window
    if query.segment is not None and key.segment is not None:
        (low_q, high_q), (low_k, high_k) = _intervals(query.segment, key.segment)
        yield (low_q <= high_k) & (low_k <= high_q), (low_q == high_k) & (low_k == high_q)
    if key.key_index is not None and ends is not None:
        first, last = (key.key_index[:, :, i].T[None, :, :] for i in (0, -1))
        yield first < ends[None, :, None], last < ends[None, :, None]


def _intervals(query: Array, key: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Least and largest of each block of queries, [nq, r, 1], and of keys, [1, r, nk]."""
    by_query = query.min(-1)[:, :, None], query.max(-1)[:, :, None]
    by_key = key.min(-1).T[None, :, :], key.max(-1).T[None, :, :]
    return by_query, by_key
