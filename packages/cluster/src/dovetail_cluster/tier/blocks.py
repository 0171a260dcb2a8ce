# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Arrays as blocks, each written by one rank, and blocks as arrays on another mesh.

All ranks divide the work alike without a message: a block goes to the rank with the fewest bytes so
far, among those whose devices hold it.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np


class Leaf(NamedTuple):
    """A leaf of a tree. `value` is a jax.Array without typed keys, or a NumPy array."""

    name: str
    value: Any


class Block(NamedTuple):
    """A part of a leaf.

    Args:
        name: Name of the leaf.
        begin: First index on each axis.
        shape: Shape of the part.
        size_bytes: Number of bytes.
        writer: The rank that writes it.
    """

    name: str
    begin: tuple[int, ...]
    shape: tuple[int, ...]
    size_bytes: int
    writer: int


def leaves(trees: Mapping[str, Any]) -> list[Leaf]:
    """Returns the leaves of all trees, named "tree/path/of/keys". Typed keys become their data.

    Raises:
        ValueError: A jax.Array is not on the devices of all ranks.
        TypeError: A leaf is neither array nor number.
    """
    import jax

    result = []
    for tree_name, tree in trees.items():
        for path, value in jax.tree_util.tree_flatten_with_path(tree)[0]:
            name = leaf_name(tree_name, path)
            if isinstance(value, jax.Array):
                _check_global(name, value)
                if jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
                    value = jax.random.key_data(value)
            elif isinstance(value, np.ndarray | np.generic | int | float):
                value = np.asarray(value)
            else:
                raise TypeError(
                    f"a leaf must be an array or a number, got {type(value).__name__} at {name}; "
                    f"save it in an object with get_state and set_state"
                )
            result.append(Leaf(name, value))
    return result


def leaf_name(tree_name: str, path: Any) -> str:
    """Names a leaf by its tree and the keys on the way."""
    import jax

    return f"{tree_name}/{jax.tree_util.keystr(path, simple=True, separator='/')}"


def _check_global(name: str, value: Any) -> None:
    import jax

    held = {device.process_index for device in value.sharding.device_set}
    if len(held) < jax.process_count():
        raise ValueError(
            f"each array must be on all {jax.process_count()} ranks, got {name} on the ranks "
            f"{sorted(held)}; write jax.device_put(x, NamedSharding(ctx.mesh(data=-1), P()))"
        )


def divide(given: Sequence[Leaf]) -> list[Block]:
    """Divides the leaves among the ranks. Every rank gets the same result."""
    loads: collections.Counter[int] = collections.Counter()
    blocks = []
    for leaf in given:
        for (begin, shape), ranks in sorted(_places(leaf.value).items()):
            size_bytes = math.prod(shape) * np.dtype(leaf.value.dtype).itemsize
            if size_bytes:
                writer = min(ranks, key=lambda rank: (loads[rank], rank))
                loads[writer] += size_bytes
                blocks.append(Block(leaf.name, begin, shape, size_bytes, writer))
    return blocks


def _places(value: Any) -> dict[tuple[tuple[int, ...], tuple[int, ...]], set[int]]:
    """The ranks that hold each distinct block of an array."""
    import jax

    if not isinstance(value, jax.Array):  # a value of the host: that of rank 0 counts
        return {((0,) * value.ndim, value.shape): {0}}
    places: dict[tuple[tuple[int, ...], tuple[int, ...]], set[int]] = {}
    for device, index in value.sharding.devices_indices_map(value.shape).items():
        places.setdefault(span(index, value.shape), set()).add(device.process_index)
    return places


def span(index: Any, shape: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Turns slices into the first index and the size on each axis."""
    ranges = [axis.indices(size)[:2] for axis, size in zip(index, shape, strict=True)]
    return tuple(low for low, _ in ranges), tuple(high - low for low, high in ranges)


def host_blocks(
    given: Sequence[Leaf], blocks: Sequence[Block], rank: int
) -> Iterator[tuple[Block, np.ndarray]]:
    """Yields the blocks of a rank with their values on the host.

    A value may share memory with the device: copy it before the array is donated.

    Args:
        given: The leaves.
        blocks: All blocks, from `divide`.
        rank: The rank.
    """
    import jax

    own = [block for block in blocks if block.writer == rank]
    by_name = {leaf.name: leaf.value for leaf in given}
    shards: dict[tuple[str, tuple[int, ...]], Any] = {}
    for name in {block.name for block in own}:
        value = by_name[name]
        if isinstance(value, jax.Array):
            for shard in value.addressable_shards:
                shards[name, span(shard.index, value.shape)[0]] = shard.data
    for block in own:
        if (block.name, block.begin) in shards:
            shards[block.name, block.begin].copy_to_host_async()
    for block in own:
        shard = shards.get((block.name, block.begin), by_name[block.name])
        yield block, np.asarray(shard)


def assembled(
    index: Any,
    shape: Sequence[int],
    dtype: Any,
    parts: Iterable[tuple[tuple[int, ...], np.ndarray]],
) -> np.ndarray:
    """Puts one shard together from blocks.

    Args:
        index: Slices of the shard.
        shape: Shape of the whole array.
        dtype: Its dtype.
        parts: Blocks, as (first index, values). They cover the shard.
    """
    begin, size = span(index, shape)
    result = np.empty(size, dtype)
    for low, values in parts:
        inner = overlap(begin, size, low, values.shape)
        if inner is not None:
            into = tuple(slice(a - b, c - b) for (a, c), b in zip(inner, begin, strict=True))
            out_of = tuple(slice(a - b, c - b) for (a, c), b in zip(inner, low, strict=True))
            result[into] = values[out_of]
    return result


def overlap(
    begin: Sequence[int], size: Sequence[int], low: Sequence[int], shape: Sequence[int]
) -> list[tuple[int, int]] | None:
    """Returns the common ranges of two blocks on each axis, None without a common element.

    Args:
        begin: First index of one block on each axis.
        size: Its shape.
        low: First index of the other block.
        shape: Its shape.
    """
    ranges = [
        (max(a, b), min(a + m, b + n)) for a, m, b, n in zip(begin, size, low, shape, strict=True)
    ]
    return ranges if all(first < last for first, last in ranges) else None
