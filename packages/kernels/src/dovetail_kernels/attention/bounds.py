# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Blocks of keys to visit for each block of queries, and the mask of one such pair.

Each block is summarized by the minimum and maximum of its positions and segments. A pair of blocks
is skipped if these intervals prove that no query sees a key. Visible pairs are thus never skipped,
for any order of positions and segments. If they are sorted, as in packed rows, few visits are in
vain, because each interval then fits its block tightly.

Visited blocks are listed by number, not as a range, so gaps cost nothing. Examples are a shuffled
row, and a row with its early and late parts on one device (balanced ring attention).
"""

import functools
import operator
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from dovetail_kernels.arrays import Cut
from dovetail_kernels.attention import pairwise
from dovetail_kernels.attention.call import AttentionCall, Inputs


class Side(NamedTuple):
    """Visibility data of queries, or of keys. A field is None if no condition of the call needs it.

    Arrays are [n, r, size] for all blocks, [r, size] for one; r is the batch, or 1 if all rows are
    equal. Padding repeats the last value, so it widens no interval.

    Attributes:
        position: Positions.
        segment: Segment ids.
        key_index: Index of each key in its row.
    """

    position: Int[Array, "*n r size"] | None
    segment: Int[Array, "*n r size"] | None
    key_index: Int[Array, "*n r size"] | None


class Visits(NamedTuple):
    """Blocks of keys in order of visits, for each block of queries or for one of them.

    Attributes:
        query: Data of the queries.
        ids: Numbers of key blocks: first fully visible ones, then partly visible ones, then the
            rest.
        whole: Number of fully visible blocks.
        some: Number of blocks to visit: fully or partly visible.
        block: Number of the block of queries.
    """

    query: Side
    ids: Int[Array, "*n r nk"]
    whole: Int[Array, "*n r"]
    some: Int[Array, "*n r"]
    block: Int[Array, "*n"]


class Bounds(NamedTuple):
    """Visits and masks of one call.

    Attributes:
        visits: Blocks to visit.
        key: Data of the keys.
        ends: Number of valid keys per row, given by `kv_lengths` or by padding. None if all are
            valid.
        mask: Mask of the call, padded to whole blocks, or None.
        cuts: Blocks of queries and of keys.
    """

    visits: Visits
    key: Side
    ends: Int[Array, " r"] | None
    mask: Bool[Array, "#b #n #t #s"] | None
    cuts: tuple[Cut, Cut]

    @property
    def conditional(self) -> bool:
        """Whether some query may not see some key, including padding."""
        return any(x is not None for x in jax.tree.leaves((tuple(self.key), self.ends, self.mask)))


def bounds(call: AttentionCall, inputs: Inputs, queries: Cut, keys: Cut) -> Bounds:
    """Finds the blocks to visit and prepares the conditions by block.

    Args:
        call: The call.
        inputs: Its arrays.
        queries: Blocks of queries.
        keys: Blocks of keys.
    """
    ends = None
    if inputs.kv_lengths is not None:
        ends = jnp.minimum(inputs.kv_lengths, call.keys).astype(jnp.int32)
    elif keys.size * keys.blocks > call.keys:
        ends = jnp.full(1, call.keys, jnp.int32)
    query, key = _side(call, inputs, 0, queries), _side(call, inputs, 1, keys)
    key = key._replace(key_index=None if ends is None else _index(keys.size * keys.blocks, keys))
    some = whole = jnp.ones((queries.blocks, 1, keys.blocks), bool)
    mask = None if inputs.mask is None else pairwise.filled(inputs.mask, queries, keys)
    conditions = [*_conditions(call, query, key, ends)]
    if mask is not None:
        conditions.append(pairwise.summary(mask, queries, keys))
    for may, must in conditions:
        some, whole = some & may, whole & must
    if call.bias is not None and call.bias[0] == 1 and call.bias[3] > 1:
        # The gradient of a bias that rows share is one sum over rows. They visit the same blocks.
        some, whole = some.any(1, keepdims=True), whole.all(1, keepdims=True)
    order = jnp.where(whole, 0, jnp.where(some, 1, 2))
    ids = jnp.argsort(order, axis=-1, stable=True).astype(jnp.int32)
    whole_count, some_count = (x.sum(-1, dtype=jnp.int32) for x in (whole, some))
    numbers = jnp.arange(queries.blocks, dtype=jnp.int32)
    every = Visits(query, ids, whole_count, some_count, numbers)
    return Bounds(every, key, ends, mask, (queries, keys))


def visible(
    call: AttentionCall, at: Bounds, visit: Visits, n: Array | int
) -> Bool[Array, "r k g i j"]:
    """Returns the mask of one block of queries and the n-th block it visits.

    Rows visit in step until the last of them has no visible block left. Rows with fewer visible
    blocks then get blocks without visible keys.

    Args:
        call: The call.
        at: Conditions of the call.
        visit: Visits of one block of queries.
        n: Index of the visit.

    Returns:
        The mask of rows, kv heads, query heads of each, queries and keys. An axis has size 1 if the
        mask is equal along it.
    """
    key = jax.tree.map(lambda blocks: _taken(blocks, visit.ids[:, n]), at.key)
    conditions = []
    if visit.query.position is not None and key.position is not None:
        ahead = visit.query.position[:, :, None] - key.position[:, None, :]
        if call.causal:
            conditions.append(ahead >= 0)
        if call.window is not None:
            conditions.append((ahead <= call.window[0]) & (ahead >= -call.window[1]))
    if visit.query.segment is not None and key.segment is not None:
        conditions.append(visit.query.segment[:, :, None] == key.segment[:, None, :])
    if key.key_index is not None and at.ends is not None:
        conditions.append((key.key_index < at.ends[:, None])[:, None, :])
    conditions = [condition[:, None, None] for condition in conditions]
    if at.mask is not None:
        place = pairwise.Place(visit.block, visit.ids[:, n], *at.cuts)
        block = pairwise.block(at.mask, place)
        conditions.append(pairwise.by_group(block, call.kv_heads))
    return functools.reduce(operator.and_, conditions)


def visits(call: AttentionCall, queries: Cut, keys: Cut) -> int:
    """Returns the number of visits for all queries of one row; an upper bound if values decide.

    Args:
        call: The call.
        queries: Blocks of queries.
        keys: Blocks of keys.
    """
    if call.positions or not (call.causal or call.window is not None):
        return queries.blocks * keys.blocks
    first = np.arange(queries.blocks) * queries.size
    last = np.minimum(first + queries.size, call.queries) - 1
    left, right = (call.keys, call.keys) if call.window is None else call.window
    until = np.minimum(last + (0 if call.causal else right), call.keys - 1)
    return int((until // keys.size - np.maximum(first - left, 0) // keys.size + 1).sum())


def visible_pairs(call: AttentionCall) -> Fraction:
    """Returns the mean number of pairs of a query and a key in the causal window of one row.

    Segments, lengths and masks are values, and hide none here. Positions are values too. In a call
    with as many queries as keys they count as the indices, and so do those of a shard's queries
    (in `jax.shard_map`) on average. Otherwise every pair counts.

    Args:
        call: The call.
    """
    queries, keys = call.queries, call.keys
    ordered = call.causal or call.window is not None
    if ordered and call.positions and queries != keys:
        ordered = bool(jax.sharding.get_abstract_mesh().manual_axes)
    if not ordered or not keys:
        return Fraction(queries * keys)
    left, right = (keys, keys) if call.window is None else call.window
    index = np.arange(keys)
    until = np.minimum(index + (0 if call.causal else right), keys - 1)
    return Fraction(queries * int((until - np.maximum(index - left, 0) + 1).sum()), keys)


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
    """Returns block ids[b] for each row b of [n, b, ...]. A single id serves all rows."""
    if len(ids) == 1:
        return jax.lax.dynamic_index_in_dim(blocks, ids[0], 0, keepdims=False)
    if blocks.shape[1] == 1:
        return blocks[ids, 0]
    return jax.vmap(lambda row, i: row[i], in_axes=(1, 0))(blocks, ids)


def _conditions(
    call: AttentionCall, query: Side, key: Side, ends: Array | None
) -> Iterator[tuple[Array, Array]]:
    """Yields two masks of block pairs [nq, r, nk] per condition: it may hold, it must hold."""
    if query.position is not None and key.position is not None:
        (low_q, high_q), (low_k, high_k) = _intervals(query.position, key.position)
        if call.causal:
            yield high_q >= low_k, low_q >= high_k
        if call.window is not None:
            left, right = call.window
            yield low_q - high_k <= left, high_q - low_k <= left
            if not call.causal:
                yield low_k - high_q <= right, high_k - low_q <= right
    if query.segment is not None and key.segment is not None:
        (low_q, high_q), (low_k, high_k) = _intervals(query.segment, key.segment)
        yield (low_q <= high_k) & (low_k <= high_q), (low_q == high_k) & (low_k == high_q)
    if key.key_index is not None and ends is not None:
        first, last = (key.key_index[:, :, i].T[None, :, :] for i in (0, -1))
        yield first < ends[None, :, None], last < ends[None, :, None]


def _intervals(query: Array, key: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Returns minimum and maximum of each block of queries, [nq, r, 1], and of keys, [1, r, nk]."""
    by_query = query.min(-1)[:, :, None], query.max(-1)[:, :, None]
    by_key = key.min(-1).T[None, :, :], key.max(-1).T[None, :, :]
    return by_query, by_key
