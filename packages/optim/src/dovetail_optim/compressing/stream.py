# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A loop over the arrays of one leaf, a few blocks at a time, on each shard. `compress` uses it.

A leaf [..., n] is viewed as rows of one block, or of n values if blocks do not divide n. A loop
reads some rows of every array and writes the results into the same buffers.
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

from dovetail_optim.compressing.mix import mix

# Values in a turn: a few float32 arrays of them lie in a core's cache; of a large leaf a share,
# since each turn costs an accelerator some launches.
_LEAST = 1 << 16
_TURNS = 128
# On a GPU, which has no such cache: 640 MiB of temporaries, and one turn for most leaves. A loop
# moves half as much again, since XLA fuses nothing over its slices.
_GPU_VALUES = 1 << 27

_GOLDEN = 0x9E3779B9  # the golden ratio's fraction times 2³²: its multiples fall evenly apart


class Shard(NamedTuple):
    """Sharding of a leaf: the mesh and the spec."""

    mesh: Any
    spec: PartitionSpec

    def shards(self, axis: int) -> int:
        """Returns the number of devices that split an axis."""
        return math.prod(self.mesh.shape[name] for name in self.names(axis))

    def names(self, axis: int) -> tuple[str, ...]:
        """Returns the mesh axes that split an axis."""
        entry = self.spec[axis] if axis < len(self.spec) else None
        return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


def placed(x: Array, given: NamedSharding | None) -> Shard | None:
    """Returns the shards of `x`: `given`, or as its type says; None if it is not sharded.

    Raises ValueError if neither tells the sharding.
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
    """Tests whether `x` is sharded over axes absent from its type; while traced, whether it may
    be.
    """
    if concrete:
        return len(x.sharding.device_set) > 1 and not x.sharding.is_fully_replicated
    mesh = get_abstract_mesh()
    kinds = zip(mesh.axis_types, mesh.axis_sizes, strict=True)
    return any(kind == AxisType.Auto and size > 1 for kind, size in kinds)


def per_shard(function: Callable[..., Any], shard: Shard | None, split: Any, whole: Any) -> Any:
    """Applies `function(split, whole)` on each shard.

    Args:
        function: Applied on each shard.
        shard: Sharding of the leaf; None runs `function` once.
        split: Arrays with the leaf's axes; so are the results.
        whole: Arrays that every shard sees whole.
    """
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
    """View of a shard's leaf of `shape` as `rows` of `width` values."""

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
        """Rows per iteration."""
        return max(_LEAST, math.prod(self.shape) // _TURNS) // self.width or 1

    def of(self, x: Shaped[Array, "..."]) -> Shaped[Array, "rows ..."]:
        """Returns the view of an array of the leaf's shape, or of its blocks' exponents."""
        return x.reshape(self.rows, -1)

    def dither(self, start: Array, rows: int, key: Array, shard: Shard | None, whole: Any) -> Any:
        """Returns bits for each value of an iteration, independent of the sharding of the `whole`
        leaf.

        Each block draws a number by the key, and its values follow evenly from it. For a value,
        bits of different keys are independent; a hash of each value is not needed.

        Args:
            start: First row.
            rows: Number of rows.
            key: Determines the bits.
            shard: Sharding of the leaf.
            whole: Shape of the whole leaf.
        """
        index = jax.lax.broadcasted_iota(jnp.uint32, (rows, self.blocks), 0)
        index = index + start.astype(jnp.uint32)
        index = index * self.blocks + jax.lax.broadcasted_iota(jnp.uint32, index.shape, 1)
        drawn = mix(self._whole(index, shard, whole), key)
        place = jax.lax.broadcasted_iota(jnp.uint32, (rows, self.width), 1) % self.block
        bits = jnp.repeat(drawn, self.block, axis=1)[:, : self.width]
        return bits + place * jnp.uint32(_GOLDEN)

    def _whole(self, index: Array, shard: Shard | None, whole: tuple[int, ...]) -> Array:
        """Maps block indices of this shard to indices in the whole leaf."""
        if shard is None:
            return index
        place, stride = jnp.zeros_like(index), 1
        for axis in reversed(range(len(whole))):
            size, full = self.shape[axis], whole[axis]
            if axis == len(whole) - 1:
                size, full = (-(-n // self.block) for n in (size, full))
            names = shard.names(axis)
            first = jax.lax.axis_index(names) * size if names else jnp.int32(0)
            place += (index % size + first.astype(jnp.uint32)) * jnp.uint32(stride % 2**32)
            index, stride = index // size, stride * full
        return place


def stream(
    turn: Callable[..., Any], read: Any, write: Any, *, rows: int, most: int, live: Any
) -> Any:
    """Returns `write` after `turn(start, read, write)` on some rows of both trees at a time.

    Each row is visited once, so `turn` may write over its input.

    Args:
        turn: Receives the first row and the rows of both trees; returns the new rows of `write`.
        read: Arrays to read.
        write: Arrays to update.
        rows: Number of rows.
        most: Rows per iteration, but on a GPU, which takes as many as hold `_GPU_VALUES`.
        live: True, unknown to the compiler. It makes each iteration a branch, so XLA fuses no write
            into its reads. Otherwise it reads parts again after writing over them, and copies all
            of `write` in each iteration (a barrier would do, but CPUs drop it earlier). For a GPU
            it copies nothing, and at each branch the GPU would wait for the host.
    """
    width = max(x.size for x in jax.tree.leaves(write)) // rows

    def in_branches(read: Any, write: Any, live: Any) -> Any:
        def branched(start: Array, read: Any, write: Any) -> Any:
            def run(write: Any) -> Any:
                return turn(start, read, write)

            return jax.lax.cond(live, run, lambda write: write, write)

        return _loop(turn if rows <= most else branched, read, write, rows=rows, most=most)

    def in_few_turns(read: Any, write: Any, live: Any) -> Any:
        del live
        return _loop(turn, read, write, rows=rows, most=max(most, _GPU_VALUES // width))

    return jax.lax.platform_dependent(
        read, write, live, cuda=in_few_turns, rocm=in_few_turns, default=in_branches
    )


def _loop(turn: Callable[..., Any], read: Any, write: Any, *, rows: int, most: int) -> Any:
    """Returns `write` after `turn` on every `most` rows."""

    def cut(tree: Any, start: Array, size: int) -> Any:
        return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, size), tree)

    def on(start: Array, size: int, write: Any) -> Any:
        parts = turn(start, cut(read, start, size), cut(write, start, size))
        paste = jax.lax.dynamic_update_slice_in_dim
        return jax.tree.map(lambda x, changed: paste(x, changed, start, 0), write, parts)

    if rows <= most:
        return turn(jnp.int32(0), read, write)
    whole = rows // most
    write = jax.lax.fori_loop(
        jnp.int32(0), jnp.int32(whole), lambda i, w: on(i * most, most, w), write
    )
    return on(jnp.int32(whole * most), rows % most, write) if rows % most else write
