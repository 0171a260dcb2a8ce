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
knowledge, the stack is constrained instead and the compiler finds the way there and back: an
all-to-all for each axis of the mesh that shards the matrices. An axis that shards their number, of
layers or experts, costs it more than it need: give the shardings.

A large stack is done in chunks, one after the other, because the operation's temporaries are
several times its input: what remains is the stack in the operation's dtype, and its result.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from dovetail_optim.matrix import Matrices

Where = Literal["auto", "local"] | Any  # or a pytree of NamedSharding
Stack = Float[Array, "_b _i _o"]
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

    work: from a stack of matrices to a stack alike. It sees zeros where a stack is filled up to a
    multiple of the devices; and rows and columns in another order where several sharded axes make
    one side, so it must not matter to it, as it does not to a function of the singular values.
    where: "auto" as above; "local" leaves it all to the compiler, which on an Explicit mesh refuses
    matrices that are sharded; a list as long as `arrays`, or another pytree with as many leaves, of
    the arrays' NamedShardings.
    chunk_bytes: the most that `work` is given at a time on each device, or one matrix if larger.

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
            done = _in_chunks(work, jnp.concatenate(stacks), place, chunk_bytes)
            ends = list(itertools.accumulate(len(stack) for stack in stacks))
            pieces = [done[end - len(s) : end] for s, end in zip(stacks, ends, strict=True)]
            return [f.unfold(y, x.shape) for f, y, x in zip(folds, pieces, blocks, strict=True)]

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


def by_compiler(work: Callable[..., Any], like: Any) -> Callable[..., Any]:
    """`work`, whose results have the shardings of `like`, divided by the compiler on any mesh.

    On an Explicit mesh a product over a sharded axis is refused, and here that would be every one:
    within `work` the axes are Auto. Without such a mesh this is `work`.
    """
    leaves, structure = jax.tree.flatten(like)
    shardings = [jax.typeof(x).sharding for x in leaves]
    mesh = next((s.mesh for s in shardings if _axes(s.mesh, AxisType.Explicit)), None)
    if mesh is None:
        return work
    # State that was made without a mesh in context is whole on every device.
    whole = NamedSharding(mesh, PartitionSpec())
    placed = jax.tree.unflatten(structure, [s if s.mesh == mesh else whole for s in shardings])

    def run(*args: Any) -> Any:
        with jax.sharding.use_abstract_mesh(mesh):
            names = _axes(mesh, AxisType.Explicit)
            return jax.sharding.auto_axes(work, axes=names, out_sharding=placed)(*args)

    return run


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
        return math.prod(self.mesh.shape[name] for name in names)  # 1 without a mesh

    @property
    def parts(self) -> int:
        """Devices among which the matrices at hand are divided."""
        return self.size(n for n in self.names if n not in self.batch)


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
            names = _axes(mesh, AxisType.Auto)[::-1]
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
    if where in ("auto", "local"):
        return
    leaves = jax.tree.leaves(where)
    wrong = [leaf for leaf in leaves if not isinstance(leaf, NamedSharding)]
    if wrong or (count is not None and len(leaves) != count):
        raise ValueError(
            "exchange must be 'auto', 'local', or a pytree with a NamedSharding for each of the "
            f"{'' if count is None else f'{count} '}parameters; got "
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
    work: Callable[[Stack], Stack], stack: Stack, place: _Place, chunk_bytes: int
) -> Stack:
    """`work` on all of the stack, from where it is and back, so much at a time."""

    def whole(chunk: Stack) -> Stack:
        return _receive(work(_send(chunk, place)), place)

    parts = place.parts
    at_once = parts * max(1, chunk_bytes // (math.prod(place.shape) * stack.dtype.itemsize))
    chunks = -(-len(stack) // at_once)
    count = -(-len(stack) // (chunks * parts)) * parts
    filled = jnp.pad(stack, ((0, chunks * count - len(stack)), (0, 0), (0, 0)))
    if chunks == 1:
        return whole(filled)[: len(stack)]
    # A loop, as the compiler is free to run independent chunks together.
    done = jax.lax.map(whole, filled.reshape(chunks, count, *filled.shape[1:]))
    return done.reshape(filled.shape[0], *done.shape[2:])[: len(stack)]


def _send(stack: Stack, place: _Place) -> Stack:
    """Parts of all matrices, to all parts of this device's share of the matrices."""
    if not place.known:
        return _constrain(stack, place, range(len(place.names) + 1))
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
        return _constrain(stack, place, range(len(place.names), -1, -1))
    split = place.inner + place.outer
    if split:
        rows, columns = place.size(place.inner), place.size(place.outer)
        b, i, o = stack.shape
        parts = stack.reshape(b, rows, i // rows, columns, o // columns).transpose(1, 3, 0, 2, 4)
        parts = parts.reshape(-1, i // rows, o // columns)
        stack = jax.lax.all_to_all(parts, split, 0, 0, tiled=True)
    return jax.lax.all_gather(stack, place.rest, tiled=True) if place.rest else stack


def _constrain(stack: Stack, place: _Place, counts: Iterable[int]) -> Stack:
    """The stack's axis over so many of the mesh's axes, in turn.

    One after the other, because the compiler moves one from a matrix's axis to the stack's by an
    all-to-all, but gathers everything to move two at a time. The mesh's last first, because an axis
    sharded over two has the last as the minor, which alone can leave without the other. None at
    both ends, or what is moved is not the stack but all that it was added up from.
    """
    free = PartitionSpec.UNCONSTRAINED
    for count in counts if place.names else ():
        spec = PartitionSpec(place.names[:count] or None, free, free)
        stack = jax.lax.with_sharding_constraint(stack, NamedSharding(place.mesh, spec))
    return stack
