# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Where each array of an optimizer's state lies on the mesh, from where the parameters lie.

State made by `jax.jit(tx.init)` lies on one device unless told otherwise, and a moment that is
replicated costs each device the whole of it. So each leaf of the state is related to a parameter,
by the parameter's path at the end of its own, and each of its axes to one of the parameter's: of
equal size, or, where two of the parameter's are equal, by a second look at `init`, of parameters
with sizes that all differ. An axis is sharded as the axis it comes from.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import optax
from jax.sharding import NamedSharding, PartitionSpec

from dovetail_optim._patterns import name_of
from dovetail_optim.codec import Coded

# A leaf that belongs to no parameter is replicated up to this: counters, keys, medians of a window.
_SMALL_BYTES = 1 << 16

_Part = str | tuple[str, ...] | None


def state_shardings(
    tx: optax.GradientTransformation, params: Any, *, zero: str | None = None
) -> Any:
    """A pytree like `tx.init(params)`, with the `NamedSharding` of each array.

    params: arrays, or their `jax.ShapeDtypeStruct`, with `NamedSharding` on one mesh. State of a
    parameter's shape is sharded as the parameter is; factored, blocked and stacked state by the
    axes that are left of it; what belongs to no parameter is replicated. zero: an axis of the mesh,
    over which each leaf that has a parameter's axes is also split, along the largest that it
    divides and nothing shards (ZeRO's first stage, 1910.02054): state is then held once over it.

    A leaf with no such axis stays as its parameter.

    Raises ValueError for parameters without such shardings, a `zero` that is no axis of the mesh,
    and a leaf of more than 64 KiB whose axes cannot be told from the parameters'.

        shardings = state_shardings(tx, params, zero="data")
        state = jax.jit(tx.init, out_shardings=shardings)(params)
    """
    mesh, specs = _placement(params)
    if zero is not None and zero not in mesh.shape:
        raise ValueError(
            f"zero must be an axis of the parameters' mesh; got zero={zero!r}; write one of "
            f"{list(mesh.shape)}"
        )
    relation = _Relation(tx, params, specs, mesh, zero)
    state = jax.eval_shape(tx.init, _sized(params, lambda shape: shape))
    return jax.tree_util.tree_map_with_path(relation.place, state, is_leaf=_is_coded)


def init(tx: optax.GradientTransformation, params: Any, *, zero: str | None = None) -> Any:
    """`tx.init(params)`, compiled so that each array is made where `state_shardings` puts it.

    Nothing is held in whole on one device, or in float32 before it is compressed.
    """
    return jax.jit(tx.init, out_shardings=state_shardings(tx, params, zero=zero))(params)


def _placement(params: Any) -> tuple[Any, list[PartitionSpec]]:
    """The mesh of the parameters, and the spec of each."""
    placed = []
    for path, x in jax.tree_util.tree_leaves_with_path(params):
        sharding = getattr(x, "sharding", None)
        if not isinstance(sharding, NamedSharding):
            raise ValueError(
                f"every parameter must have a NamedSharding; got {name_of(path)!r} with "
                f"sharding={sharding}; write jax.device_put(params, shardings) first, with "
                "NamedSharding(mesh, PartitionSpec()) for what is whole on each device"
            )
        placed.append(sharding)
    meshes = list({sharding.mesh: None for sharding in placed})
    if len(meshes) != 1:
        raise ValueError(
            f"the parameters must lie on one mesh; got {len(meshes)} meshes: {meshes}; write "
            "jax.device_put(params, shardings) first"
        )
    return meshes[0], [sharding.spec for sharding in placed]


class _Relation:
    """The parameters that leaves of a state are related to."""

    def __init__(self, tx: Any, params: Any, specs: Any, mesh: Any, zero: str | None):
        self.tx, self.tree, self.mesh, self.zero = tx, params, mesh, zero
        leaves = jax.tree_util.tree_leaves_with_path(params)
        self.params = [(k, x.shape, spec) for (k, x), spec in zip(leaves, specs, strict=True)]

    @functools.cached_property
    def probes(self) -> dict[Any, tuple[int, ...]]:
        """The shapes of a state, by path, of parameters whose axes all differ in size."""
        state = jax.eval_shape(self.tx.init, _sized(self.tree, _apart))
        return {path: x.shape for path, x in jax.tree_util.tree_leaves_with_path(state)}

    def place(self, path: Any, leaf: Any) -> Any:
        """The sharding of one leaf of the state."""
        found = [p for p in self.params if path[len(path) - len(p[0]) :] == p[0]]
        _, shape, spec = max(found, key=lambda p: len(p[0]), default=(None, (), ()))
        if isinstance(leaf, Coded):
            # One sharding for both: a block's exponent lies with its codes.
            blocks = leaf.exponents.shape[-1] if shape else 1
            split: Any = self._split(shape, range(len(shape)), spec, blocks=blocks)
            return Coded(split, split)
        axes = self._axes(path, leaf.shape, shape) if found else None
        if axes is not None:
            return self._split(leaf.shape, axes, spec)
        if math.prod(leaf.shape) * leaf.dtype.itemsize > _SMALL_BYTES:
            raise ValueError(
                "every large array of the state must have axes of a parameter; got "
                f"{name_of(path)!r} of shape {leaf.shape}, which would be whole on each device; "
                "write its sharding by hand, and state_shardings for the transformation without it"
            )
        return NamedSharding(self.mesh, PartitionSpec())

    def _axes(self, path: Any, sizes: tuple[int, ...], shape: Any) -> Sequence[int | None] | None:
        """For each axis of a leaf the parameter's that it is; None if it has none of them."""
        if sizes == shape:
            return range(len(shape))
        candidates = [[i for i, n in enumerate(shape) if n == size] for size in sizes]
        if not any(candidates):
            return None
        if any(len(c) > 1 for c in candidates):
            probe, apart = self.probes.get(path, ()), _apart(shape)
            if len(probe) != len(sizes):
                return None
            candidates = [[i for i in range(len(shape)) if apart[i] == n] for n in probe]
        return [c[0] if c else None for c in candidates]

    def _split(
        self, sizes: Any, axes: Sequence[int | None], spec: Any, *, blocks: int | None = None
    ) -> NamedSharding:
        """Each axis as the one that it is, no mesh axis twice, and `zero` over the largest left.

        blocks: how many the last axis has, if of any: none is cut.
        """
        parts: list[_Part] = []
        for axis in axes:
            part = spec[axis] if axis is not None and axis < len(spec) else None
            parts.append(None if set(_names(part)) & set(_used(parts)) else part)
        if self.zero and self.zero not in _used(parts):
            count = self.mesh.shape[self.zero]
            free = [i for i, axis in enumerate(axes) if axis is not None and parts[i] is None]
            fits = [i for i in free if sizes[i] and sizes[i] % count == 0]
            if blocks and (blocks % count or sizes[-1] % blocks):
                fits = [i for i in fits if i != len(sizes) - 1]
            if fits:
                parts[max(fits, key=lambda i: sizes[i])] = self.zero
        return NamedSharding(self.mesh, PartitionSpec(*parts))


def _names(part: _Part) -> tuple[str, ...]:
    return () if part is None else (part,) if isinstance(part, str) else tuple(part)


def _used(parts: list[_Part]) -> list[str]:
    return [name for part in parts for name in _names(part)]


def _sized(params: Any, sizes: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Any:
    """The parameters' dtypes with shapes by `sizes`, and without shardings."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(sizes(x.shape), x.dtype), params)


def _apart(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape of the same order of sizes, each of them its own: what is factored stays so."""
    return tuple(n * (len(shape) + 1) + i for i, n in enumerate(shape))


def _is_coded(x: Any) -> bool:
    return isinstance(x, Coded)
