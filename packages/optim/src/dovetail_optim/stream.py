# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""One leaf's arrays, a few blocks at a time, on each shard: the loop below `compress`.

A leaf [..., n] is viewed as rows of one block, or, where blocks do not divide n, of n values. A
loop takes some rows of every array, and writes what they become into the same buffers.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.sharding import (
    AxisType,
    NamedSharding,
    PartitionSpec,
    get_abstract_mesh,
    reshard,
)
from jaxtyping import Array, Shaped

from dovetail_optim.mix import mix

# Values in a turn: a few float32 arrays of them lie in a core's cache; of a large leaf a share,
# since each turn costs an accelerator some launches.
_LEAST = 1 << 16
_TURNS = 128

_GOLDEN = 0x9E3779B9  # the golden ratio's fraction times 2³²: its multiples fall evenly apart


class Shard(NamedTuple):
    """Where a leaf is sharded: over which mesh, and how."""

    mesh: Any
    spec: PartitionSpec

    def shards(self, axis: int) -> int:
        """Over how many devices an axis is split."""
        return math.prod(self.mesh.shape[name] for name in self.names(axis))

    def names(self, axis: int) -> tuple[str, ...]:
        """The mesh axes over which an axis is split."""
        part = self.spec[axis] if axis < len(self.spec) else None
        return () if part is None else (part,) if isinstance(part, str) else tuple(part)


def placed(x: Array, given: NamedSharding | None) -> Shard | None:
    """Where `x` is sharded: as `given`, else as its type says; None for not at all.

    Raises ValueError where only `given` could say.
    """
    if given is not None:
        return Shard(given.mesh, given.spec) if any(given.spec) else None
    kind: Any = jax.typeof(x).sharding
    concrete = not isinstance(x, Tracer)
    if any(kind.spec):
        lies: Any = x.sharding if concrete else kind
        return Shard(lies.mesh, kind.spec)
    if _hidden(x, concrete):
        raise ValueError(
            "on a mesh of Auto axes compress must be told how the parameters are sharded, so that "
            f"each shard runs its own loop; got shardings=None and a parameter of shape {x.shape}; "
            "write shardings=jax.tree.map(lambda p: p.sharding, params), from outside of jax.jit"
        )
    return None


def _hidden(x: Array, concrete: bool) -> bool:
    """Whether `x` is, or while traced may be, sharded over axes that its type does not show."""
    if concrete:
        return len(x.sharding.device_set) > 1 and not x.sharding.is_fully_replicated
    mesh = get_abstract_mesh()
    kinds = zip(mesh.axis_types, mesh.axis_sizes, strict=True)
    return any(kind == AxisType.Auto and size > 1 for kind, size in kinds)


def per_shard(function: Callable[..., Any], shard: Shard | None, split: Any, whole: Any) -> Any:
    """`function(split, whole)` on each shard: `split`, and the results, have the leaf's axes."""
    if shard is None:
        return function(split, whole)
    if AxisType.Explicit in shard.mesh.axis_types:
        split = jax.tree.map(lambda x: reshard(x, NamedSharding(shard.mesh, shard.spec)), split)
    # Without the check of varying axes: what a transformation makes fresh does not vary.
    return jax.shard_map(
        function,
        mesh=shard.mesh,
        in_specs=(shard.spec, PartitionSpec()),
        out_specs=shard.spec,
        check_vma=False,
    )(split, whole)


class Rows(NamedTuple):
    """How the leaf of a shard, of `shape`, is viewed as `rows` of `width` values."""

    shape: tuple[int, ...]
    block: int

    @property
    def width(self) -> int:
        n = self.shape[-1] if self.shape else 1
        return n if n % self.block else self.block

    @property
    def rows(self) -> int:
        return math.prod(self.shape) // self.width

    @property
    def blocks(self) -> int:
        """Blocks in a row."""
        return -(-self.width // self.block)

    @property
    def most(self) -> int:
        """Rows in a turn."""
        return max(_LEAST, math.prod(self.shape) // _TURNS) // self.width or 1

    def of(self, x: Shaped[Array, "..."]) -> Shaped[Array, "rows ..."]:
        """The view of an array of the leaf's shape, or of its blocks' exponents."""
        return x.reshape(self.rows, -1)

    def dither(self, start: Array, rows: int, key: Array, shard: Shard | None, whole: Any) -> Any:
        """Bits for each value of a turn: the same for a place in the `whole` leaf however sharded.

        Each block draws a number by the key, from which its values go evenly over all: to a value
        the bits of other keys are independent, and a hash of each value is not needed.
        """
        index = jax.lax.broadcasted_iota(jnp.uint32, (rows, self.blocks), 0)
        index = index + start.astype(jnp.uint32)
        index = index * self.blocks + jax.lax.broadcasted_iota(jnp.uint32, index.shape, 1)
        drawn = mix(self._whole(index, shard, whole), key)
        place = jax.lax.broadcasted_iota(jnp.uint32, (rows, self.width), 1) % self.block
        bits = jnp.repeat(drawn, self.block, axis=1)[:, : self.width]
        return bits + place * jnp.uint32(_GOLDEN)

    def _whole(self, index: Array, shard: Shard | None, whole: tuple[int, ...]) -> Array:
        """The index in the whole leaf's grid of blocks of those at `index` in this shard's."""
        if shard is None:
            return index
        found, stride = jnp.zeros_like(index), 1
        for axis in reversed(range(len(whole))):
            size, full = self.shape[axis], whole[axis]
            if axis == len(whole) - 1:
                size, full = (-(-n // self.block) for n in (size, full))
            names = shard.names(axis)
            first = jax.lax.axis_index(names) * size if names else jnp.int32(0)
            found += (index % size + first.astype(jnp.uint32)) * jnp.uint32(stride % 2**32)
            index, stride = index // size, stride * full
        return found


def stream(
    turn: Callable[..., Any], read: Any, write: Any, *, rows: int, most: int, live: Any
) -> Any:
    """What `write` becomes by `turn(start, read, write)` on every `most` rows of both trees.

    Each row is seen once, so `turn` may write over what it reads. live: True, in a way that the
    compiler cannot know. It makes of each turn a branch, into which nothing is fused that writes:
    else XLA reads parts again after it has written over them, and so copies all of `write` in each
    turn (a barrier would do, but on CPUs it is gone by then).
    """

    def cut(tree: Any, start: Array, size: int) -> Any:
        return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, size), tree)

    def on(start: Array, size: int, write: Any) -> Any:
        parts = jax.lax.cond(
            live,
            lambda parts: turn(start, cut(read, start, size), parts),
            lambda parts: parts,
            cut(write, start, size),
        )
        paste = jax.lax.dynamic_update_slice_in_dim
        return jax.tree.map(lambda x, part: paste(x, part, start, 0), write, parts)

    if rows <= most:
        return turn(jnp.int32(0), read, write)
    whole = rows // most
    write = jax.lax.fori_loop(
        jnp.int32(0), jnp.int32(whole), lambda i, w: on(i * most, most, w), write
    )
    return on(jnp.int32(whole * most), rows % most, write) if rows % most else write
