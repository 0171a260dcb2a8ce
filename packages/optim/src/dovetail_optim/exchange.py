# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Whole matrices on each device for the time of an operation on them, by one exchange each way.

An operation on whole matrices, such as Newton-Schulz, fits badly on matrices that are sharded: each
of its products communicates. But an optimizer has many matrices of one shape, and they are
independent. So equal-shaped matrices of all leaves form a stack, and the stack's axis, not the
matrix, is spread over the devices: an all-to-all brings every device all parts of some matrices,
the operation runs without communication, and another all-to-all returns the parts. Over mesh axes
that do not shard a leaf each group of devices does its share, and an all-gather returns the rest.

How the arrays are sharded is known from their types on an Explicit mesh, from the arrays themselves
outside `jax.jit`, and else only from the caller. Known, the exchange is written out below, so that
it is what it says on every version of the compiler. On an Auto mesh in context, without that
knowledge, the stack is constrained instead and the compiler finds the way there and back.

Stacks are cut into chunks, done one after the other, because the operation's temporaries are
several times its input.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from dovetail_optim.matrix import Matrices

Where = Literal["auto", "local"] | Any  # or a pytree of NamedSharding
Stack = Float[Array, "b i o"]
Names = tuple[str, ...]


def map_whole(
    work: Callable[[Stack], Stack],
    arrays: Sequence[Float[Array, "..."]],
    matrices: Sequence[Matrices],
    *,
    where: Where = "auto",
    dtype: jax.typing.DTypeLike = jnp.bfloat16,
    chunk_bytes: int = 2**28,
) -> list[Float[Array, "..."]]:
    """`work` on the matrices of `arrays`, each whole, in `dtype`; results in the arrays' shardings.

    work: from a stack of matrices to a stack alike; it sees zeros where a stack is filled up to a
    multiple of the devices. where: "auto" as above; "local" leaves it all to the compiler; a list,
    as long as `arrays`, or another pytree with as many leaves, of the NamedShardings of the arrays.
    chunk_bytes: about how much `work` is given at a time, on each device.

    Inside a `jax.shard_map` an array is what the body sees of it: matrices that the map splits
    would be taken for whole ones.
    """
    places = _places(arrays, matrices, where)
    results: list[Any] = [None] * len(arrays)
    for place in dict.fromkeys(place for place, _ in places):
        members = [i for i, (other, _) in enumerate(places) if other == place]
        folds = [matrices[i] for i in members]

        def run(*blocks: Any, place: _Place = place, folds: list[Matrices] = folds) -> list[Any]:
            stacks = [f.fold(x.astype(dtype)) for f, x in zip(folds, blocks, strict=True)]
            done = _in_chunks(work, stacks, place, chunk_bytes)
            return [f.unfold(y, x.shape) for f, y, x in zip(folds, done, blocks, strict=True)]

        if place.known:
            specs = [places[i][1] for i in members]
            run = jax.shard_map(
                run,
                mesh=place.mesh,
                in_specs=tuple(specs),
                out_specs=specs,
                axis_names=set(place.names),
                # What an all-gather returns counts as varying, though it is equal everywhere.
                check_vma=False,
            )
        for i, result in zip(members, run(*(arrays[i] for i in members)), strict=True):
            results[i] = result
    return results


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Place:
    """The shape of matrices, and which axes of the mesh shard their number, rows and columns."""

    shape: tuple[int, int]
    mesh: Any = None
    names: Names = ()  # the axes of the mesh that the exchange is over
    known: bool = False  # whether what follows is known; otherwise the compiler's matter
    batch: frozenset[str] = frozenset()
    inner: Names = ()
    outer: Names = ()

    @property
    def rest(self) -> Names:
        """The axes along which every device has the same."""
        return tuple(n for n in self.names if n not in (*self.batch, *self.inner, *self.outer))

    def size(self, names: Iterable[str]) -> int:
        return math.prod(self.mesh.shape[name] for name in names)

    @property
    def parts(self) -> int:
        """Devices among which the matrices at hand are divided."""
        return self.size(name for name in self.names if name not in self.batch)


def _places(
    arrays: Sequence[Array], matrices: Sequence[Matrices], where: Where
) -> list[tuple[_Place, PartitionSpec | None]]:
    """For each array its place, equal for those that are stacked, and its own spec if known."""
    known: Sequence[NamedSharding | None]
    if isinstance(where, str):
        known = [_known(x) if where == "auto" else None for x in arrays]
        mesh = jax.sharding.get_abstract_mesh() if where == "auto" else None
    else:
        check_where(where, len(arrays))
        known, mesh = jax.tree.leaves(where), None
    places = []
    for x, folding, sharding in zip(arrays, matrices, known, strict=True):
        shape = folding.sizes(x.shape)[1:]
        if sharding is not None:
            places.append(_sharded(shape, folding, sharding, x.ndim))
        elif mesh is not None and isinstance(x, Tracer) and _axes(mesh, AxisType.Auto):
            names = _axes(mesh, AxisType.Auto)
            places.append((_Place(shape=shape, mesh=mesh, names=names), None))
        else:
            places.append((_Place(shape=shape), None))
    return places


def _known(x: Array) -> NamedSharding | None:
    """The sharding of `x`, of a traced array what its type says of Explicit axes."""
    if isinstance(x, Tracer):
        sharding = jax.typeof(x).sharding
        return sharding if _axes(sharding.mesh, AxisType.Explicit) else None
    return x.sharding if isinstance(x.sharding, NamedSharding) else None


def check_where(where: Where, count: int | None = None) -> None:
    """Raises ValueError unless `where` is as `map_whole` takes it, for `count` arrays if known."""
    leaves = [] if where in ("auto", "local") else jax.tree.leaves(where)
    wrong = [leaf for leaf in leaves if not isinstance(leaf, NamedSharding)]
    if wrong or (count is not None and len(leaves) not in (0, count)):
        raise ValueError(
            "exchange must be 'auto', 'local', or a pytree with a NamedSharding for each of the "
            f"{'' if count is None else count} parameters; got "
            + (repr(wrong[0]) if wrong else f"{len(leaves)} shardings")
            + "; write exchange=jax.tree.map(lambda p: p.sharding, params)"
        )


def _sharded(
    shape: tuple[int, int], folding: Matrices, sharding: NamedSharding, ndim: int
) -> tuple[_Place, PartitionSpec]:
    """The place of an array whose sharding is known, and its spec with an entry for every axis."""
    entries = (*sharding.spec, *(None,) * (ndim - len(sharding.spec)))
    axes = [_tuple(entry) for entry in entries]
    batch, inner, outer = (
        sum((axes[axis] for axis in group), ())
        for group in (folding.batch, folding.inner, folding.outer)
    )
    mesh = sharding.mesh
    traced = isinstance(mesh, jax.sharding.AbstractMesh)
    names = _axes(mesh, AxisType.Explicit) if traced else ()
    place = _Place(
        shape=shape,
        mesh=mesh,
        names=names or _axes(mesh, AxisType.Explicit, AxisType.Auto),
        known=True,
        batch=frozenset(batch),
        inner=inner,
        outer=outer,
    )
    return place, PartitionSpec(*entries)


def _axes(mesh: Any, *types: AxisType) -> Names:
    return tuple(n for n, t in zip(mesh.axis_names, mesh.axis_types, strict=True) if t in types)


def _tuple(entry: Any) -> Names:
    if entry is None or entry is PartitionSpec.UNCONSTRAINED:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)


def _in_chunks(
    work: Callable[[Stack], Stack], stacks: list[Stack], place: _Place, chunk_bytes: int
) -> list[Stack]:
    """`work` on all that the stacks hold, from where they are and back."""
    parts = place.parts if place.mesh is not None else 1
    matrix_bytes = math.prod(place.shape) * stacks[0].dtype.itemsize
    count = parts * max(1, chunk_bytes // matrix_bytes)
    done: list[list[Stack]] = [[] for _ in stacks]
    before = None
    for chunk in _chunks([len(s) for s in stacks], count):
        stack = jnp.concatenate([stacks[i][start:stop] for i, start, stop in chunk])
        filled = jnp.pad(stack, ((0, -len(stack) % parts), (0, 0), (0, 0)))
        if before is not None:  # so that only one chunk's temporaries are alive
            filled, _ = jax.lax.optimization_barrier((filled, before))
        before = _receive(work(_send(filled, place)), place)
        offset = 0
        for i, start, stop in chunk:
            done[i].append(before[offset : offset + stop - start])
            offset += stop - start
    return [jnp.concatenate(pieces) for pieces in done]


def _chunks(lengths: Sequence[int], count: int) -> Iterator[list[tuple[int, int, int]]]:
    """Runs of at most `count` of all the stacks' matrices in turn: (stack, start, stop)."""
    chunk: list[tuple[int, int, int]] = []
    room = count
    for i, length in enumerate(lengths):
        start = 0
        while start < length:
            stop = min(length, start + room)
            chunk.append((i, start, stop))
            room -= stop - start
            start = stop
            if not room:
                yield chunk
                chunk, room = [], count
    if chunk:
        yield chunk


def _send(stack: Stack, place: _Place) -> Stack:
    """Parts of all matrices, to all parts of this device's share of the matrices."""
    if not place.known:
        return _constrain(stack, place, PartitionSpec(place.names, None, None))
    if place.rest:
        share = len(stack) // place.size(place.rest)
        first = jax.lax.axis_index(place.rest) * share
        stack = jax.lax.dynamic_slice_in_dim(stack, first, share)
    split = place.inner + place.outer
    if not split:
        return stack
    rows, columns = place.size(place.inner), place.size(place.outer)
    _, i, o = stack.shape
    # Afterwards those of the first device come first, in the order of the axes in `split`.
    parts = jax.lax.all_to_all(stack, split, 0, 0, tiled=True).reshape(rows, columns, -1, i, o)
    return parts.transpose(2, 0, 3, 1, 4).reshape(-1, rows * i, columns * o)


def _receive(stack: Stack, place: _Place) -> Stack:
    """The way back of `_send`."""
    if not place.known:
        free = PartitionSpec.UNCONSTRAINED
        return _constrain(stack, place, PartitionSpec(None, free, free))
    split = place.inner + place.outer
    if split:
        rows, columns = place.size(place.inner), place.size(place.outer)
        b, i, o = stack.shape
        parts = stack.reshape(b, rows, i // rows, columns, o // columns).transpose(1, 3, 0, 2, 4)
        parts = parts.reshape(-1, i // rows, o // columns)
        stack = jax.lax.all_to_all(parts, split, 0, 0, tiled=True)
    return jax.lax.all_gather(stack, place.rest, tiled=True) if place.rest else stack


def _constrain(stack: Stack, place: _Place, spec: PartitionSpec) -> Stack:
    if place.mesh is None:
        return stack
    return jax.lax.with_sharding_constraint(stack, NamedSharding(place.mesh, spec))
