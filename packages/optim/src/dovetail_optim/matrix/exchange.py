# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Distributed application of a function to whole matrices, with one all-to-all each way.

Newton-Schulz needs whole matrices. On sharded matrices each of its products communicates. An
optimizer, however, has many matrices of equal shape, and they are independent. We stack them and
shard the stack instead of the matrices:

1. an all-to-all gives each device all shards of some matrices;
2. the function runs without communication;
3. a second all-to-all returns the shards.

Over mesh axes that do not shard a leaf, each group of devices computes a share, and an all-gather
returns the rest. Large stacks are processed in chunks, one after the other, because the function's
temporaries are several times its input.

Shardings come from the array types on an Explicit mesh, from the arrays outside `jax.jit`, or from
the caller. If they are known, the collectives are written out and do not depend on the compiler. On
an Auto mesh without them, a sharding constraint on the stack leaves the choice to XLA. It then
needs an all-to-all for each mesh axis that shards the matrices, and extra ones for axes that shard
layers or experts: pass the shardings.
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

from dovetail_optim.matrix.matrix import Matrices

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
    """Applies `work` to each whole matrix of `arrays`.

    Inside `jax.shard_map`, pass only matrices that the map does not split.

    Args:
        work: Maps a stack of matrices [b, i, o] to a stack of equal shape. It sees zero matrices as
            padding, and permuted rows and columns if several axes shard one side. Functions of the
            singular values, such as Newton-Schulz, do not mind.
        arrays: Arrays that hold matrices.
        matrices: For each array, its axes that form the matrix.
        where: Shardings of `arrays`. "auto": see above. "local": leave it to the compiler, which
            refuses sharded matrices on an Explicit mesh. Or a pytree with one `NamedSharding` per
            array.
        dtype: Dtype of the stacks.
        chunk_bytes: Largest input of one call of `work` per device; at least one matrix.

    Returns:
        Results with the shapes and shardings of `arrays`, in `dtype`.
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
    """Returns `work` with its axes Auto, and results in the shardings of `like`.

    On an Explicit mesh a product over a sharded axis is refused; the compiler may then divide it.
    Without such a mesh this is `work`.
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
    """Shape of some matrices, and the mesh axes that shard their number, rows and columns."""

    shape: tuple[int, int]
    mesh: Any = None
    names: Names = ()  # the axes of the mesh that the exchange is over
    known: bool = False  # whether what follows is known; otherwise the compiler's matter
    batch: frozenset[str] = frozenset()
    inner: Names = ()
    outer: Names = ()

    @property
    def rest(self) -> Names:
        """Axes along which all devices hold the same."""
        return tuple(n for n in self.names if n not in (*self.batch, *self.inner, *self.outer))

    def size(self, names: Iterable[str]) -> int:
        return math.prod(self.mesh.shape[name] for name in names)  # 1 without a mesh

    @property
    def parts(self) -> int:
        """Number of devices that share the matrices."""
        return self.size(n for n in self.names if n not in self.batch)


def _places(
    arrays: Sequence[Array], matrices: Sequence[Matrices], where: Where
) -> list[tuple[_Place, PartitionSpec | None]]:
    """Returns for each array its place, equal for stacked arrays, and its spec if known."""
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
    """Returns the sharding of `x`. For a traced array only Explicit axes are known."""
    if isinstance(x, Tracer):
        sharding = jax.typeof(x).sharding
        return sharding if _axes(sharding.mesh, AxisType.Explicit) else None
    return x.sharding if isinstance(x.sharding, NamedSharding) else None


def check_where(where: Where, count: int | None = None) -> None:
    """Raises ValueError unless `where` is valid for `map_whole` and `count` arrays."""
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
    """Returns the place of an array with a known sharding, and its spec with an entry for every
    axis.
    """
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
    """Applies `work` to the stack, a chunk at a time."""

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
    """Exchanges shards of all matrices for whole matrices, this device's share."""
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
    """Inverts `_send`."""
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
    """Shards the stack's axis over as many mesh axes as each of `counts` says.

    One axis at a time: the compiler moves one from a matrix's axis to the stack's by an all-to-all,
    but gathers everything to move two. The mesh's last axis goes first: an axis sharded over two
    has the last as the minor, and only the minor can leave alone. Both ends have none, because
    otherwise the compiler moves the terms of the stack instead of the stack.
    """
    free = PartitionSpec.UNCONSTRAINED
    for count in counts if place.names else ():
        spec = PartitionSpec(place.names[:count] or None, free, free)
        stack = jax.lax.with_sharding_constraint(stack, NamedSharding(place.mesh, spec))
    return stack
