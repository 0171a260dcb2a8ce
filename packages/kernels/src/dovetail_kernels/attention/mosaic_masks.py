# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The conditions of a call in the form read by the Mosaic kernel.

All conditions on positions become one range per query. A hidden key gets a position outside every
range. The kernel thus makes two comparisons of positions for any call.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from dovetail_kernels.arrays import Cut
from dovetail_kernels.attention.bounds import bounds
from dovetail_kernels.attention.call import AttentionCall, Inputs

_LARGEST = np.iinfo(np.int32).max
# Position of padding and of keys beyond kv_lengths; other positions are >= 0.
_HIDDEN = -1


class Masks(NamedTuple):
    """Visible keys of each query: q_low <= k_position <= q_high and q_segment == k_segment.

    All arrays are int32.

    Attributes:
        q_low: Least visible position of each query, [batch, T].
        q_high: Largest visible position of each query, [batch, T].
        k_position: Position of each key, [batch, S].
        blocks: Numbers of key blocks in reading order, [batch, blocks of queries, blocks of keys].
        whole: Number of blocks to read without comparison, the first ones, [batch, blocks of
            queries].
        some: Number of blocks to read in all, [batch, blocks of queries].
        q_segment: Segment of each query, [batch, T], or None.
        k_segment: Segment of each key, [batch, S], or None.
    """

    q_low: Any
    q_high: Any
    k_position: Any
    blocks: Any
    whole: Any
    some: Any
    q_segment: Any = None
    k_segment: Any = None


def masks(call: AttentionCall, inputs: Inputs, queries: Cut, keys: Cut) -> Masks:
    """Builds the masks for whole blocks of queries and keys. Padding sees nothing and is not seen.

    Args:
        call: The call.
        inputs: Its arrays.
        queries: Blocks of queries.
        keys: Blocks of keys.
    """
    low, high, position = _ranges(call, inputs)
    seen = _arange(call.keys) < _ends(call, inputs)[:, None]
    kept = bounds(call, inputs, queries, keys).visits
    compact = Masks(
        q_low=_filled(low, queries, 0),
        q_high=_filled(high, queries, _HIDDEN),
        k_position=_filled(jnp.where(seen, position, _HIDDEN), keys, _HIDDEN),
        blocks=kept.ids.swapaxes(0, 1),
        whole=kept.whole.T,
        some=kept.some.T,
    )
    if inputs.segment_ids is not None:
        q_segment, k_segment = _in_32_bits(inputs.segment_ids)
        q_segment, k_segment = _filled(q_segment, queries, 0), _filled(k_segment, keys, 0)
        compact = compact._replace(q_segment=q_segment, k_segment=k_segment)
    return Masks(
        *(
            None if x is None else jnp.broadcast_to(x, (call.batch, *x.shape[1:])).astype(jnp.int32)
            for x in compact
        )
    )


def _ranges(call: AttentionCall, inputs: Inputs) -> tuple[Array, Array, Array]:
    """Returns the least and largest visible position of each query, and the positions of keys."""
    if not call.causal and call.window is None:
        nothing = jnp.zeros((1, call.keys), jnp.int32)
        everything = jnp.full((1, call.queries), _LARGEST, jnp.int32)
        return jnp.zeros_like(everything), everything, nothing
    q_position, k_position = _positions(call, inputs)
    low, high = jnp.zeros_like(q_position), jnp.full_like(q_position, _LARGEST)
    if call.window is not None:
        left, right = call.window
        low = jnp.maximum(q_position - left, 0)
        high = jnp.minimum(q_position, _LARGEST - right) + right
    return low, q_position if call.causal else high, k_position


def _positions(call: AttentionCall, inputs: Inputs) -> tuple[Array, Array]:
    """Returns positions as int32 >= 0, relative to the row's least: only differences count."""
    if inputs.positions is None:
        return _arange(call.queries), _arange(call.keys)
    wide = jnp.int64 if inputs.positions[0].dtype.itemsize > 4 else jnp.int32
    q_position, k_position = (side.astype(wide) for side in inputs.positions)
    least = jnp.minimum(q_position.min(1), k_position.min(1))[:, None]
    return (q_position - least).astype(jnp.int32), (k_position - least).astype(jnp.int32)


def _arange(length: int) -> Array:
    return jnp.arange(length, dtype=jnp.int32)[None, :]


def _ends(call: AttentionCall, inputs: Inputs) -> Array:
    if inputs.kv_lengths is None:
        return jnp.full(1, call.keys, jnp.int32)
    return jnp.minimum(inputs.kv_lengths, call.keys).astype(jnp.int32)


def _in_32_bits(ids: tuple[Array, Array]) -> tuple[Array, Array]:
    """Returns ids of at most 32 bits with the same equalities. Wider ids become their ranks."""
    if ids[0].dtype.itemsize <= 4:
        return ids
    ordered = jnp.sort(jnp.concatenate(ids, axis=1), axis=1)
    q_ids, k_ids = (jax.vmap(jnp.searchsorted)(ordered, side) for side in ids)
    return q_ids, k_ids


def _filled(ids: Int[Array, "r t"], cut: Cut, value: int) -> Int[Array, "r t2"]:
    return jnp.pad(ids, ((0, 0), (0, -ids.shape[1] % cut.size)), constant_values=value)
