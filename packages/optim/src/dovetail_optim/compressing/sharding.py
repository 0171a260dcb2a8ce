# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Shardings of an optimizer's state, derived from those of the parameters.

State made by `jax.jit(tx.init)` lies on one device by default, and a replicated moment costs each
device the whole of it. So each leaf of the state is related to a parameter, whose path ends the
leaf's path, and each of its axes to an axis of the parameter: the one of equal size. If two have
equal size, a second trace of `init` with parameters of unique sizes decides. An axis is then
sharded like its origin.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import optax
from jax.sharding import NamedSharding, PartitionSpec

from dovetail_optim._patterns import name_of
from dovetail_optim.compressing.codec import Coded

# A leaf that belongs to no parameter is replicated up to this: counters, keys, medians of a window.
_SMALL_BYTES = 1 << 16

_Part = str | tuple[str, ...] | None


def state_shardings(
    tx: optax.GradientTransformation, params: Any, *, zero: str | None = None
) -> Any:
    """Returns a pytree like `tx.init(params)` with the `NamedSharding` of each array.

    State of a parameter's shape is sharded like the parameter. Factored, blocked and stacked state
    is sharded by its remaining axes. State that belongs to no parameter is replicated.

    Args:
        tx: The transformation.
        params: Arrays or `jax.ShapeDtypeStruct`, with `NamedSharding` on one mesh.
        zero: Mesh axis over which each leaf with a parameter's axes is also split, along its
            largest unsharded axis that it divides (ZeRO stage 1, 1910.02054). State is then stored
            once over that axis. A leaf without such an axis stays like its parameter.

    Raises:
        ValueError: A parameter has no such sharding, `zero` is no axis of the mesh, or a leaf of
            more than 64 KiB cannot be related to a parameter.

    Example:

        >>> import jax, jax.numpy as jnp, optax
        >>> from jax.sharding import NamedSharding, PartitionSpec
        >>> mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
        >>> w = jax.device_put(jnp.ones((4, 4)), NamedSharding(mesh, PartitionSpec("data")))
        >>> state_shardings(optax.adam(1e-3), {"w": w}, zero="data")[0].mu["w"].spec
        P('data', None)
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
    """Returns `tx.init(params)` with each array created in its place of `state_shardings`.

    No array is ever whole on one device, or in float32 before it is compressed.

    Args:
        tx: The transformation.
        params: Parameters with `NamedSharding` on one mesh.
        zero: See `state_shardings`.
    """
    return jax.jit(tx.init, out_shardings=state_shardings(tx, params, zero=zero))(params)


def _placement(params: Any) -> tuple[Any, list[PartitionSpec]]:
    """Returns the mesh of the parameters and the spec of each."""
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
    """Relates leaves of a state to parameters."""

    def __init__(self, tx: Any, params: Any, specs: Any, mesh: Any, zero: str | None):
        self.tx, self.tree, self.mesh, self.zero = tx, params, mesh, zero
        leaves = jax.tree_util.tree_leaves_with_path(params)
        self.params = [(k, x.shape, spec) for (k, x), spec in zip(leaves, specs, strict=True)]

    @functools.cached_property
    def probes(self) -> dict[Any, tuple[int, ...]]:
        """Returns the shapes of a state by path, for parameters with unique axis sizes."""
        state = jax.eval_shape(self.tx.init, _sized(self.tree, _apart))
        return {path: x.shape for path, x in jax.tree_util.tree_leaves_with_path(state)}

    def place(self, path: Any, leaf: Any) -> Any:
        """Returns the sharding of one leaf of the state."""
        related = [p for p in self.params if path[len(path) - len(p[0]) :] == p[0]]
        _, shape, spec = max(related, key=lambda p: len(p[0]), default=(None, (), ()))
        if isinstance(leaf, Coded):
            # One sharding for both: a block's exponent lies with its codes.
            blocks = leaf.exponents.shape[-1] if shape else 1
            split: Any = self._split(shape, range(len(shape)), spec, blocks=blocks)
            return Coded(split, split)
        axes = self._axes(path, leaf.shape, shape) if related else None
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
        """Returns the parameter's axis for each axis of a leaf; None if there is none."""
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
        """Shards each axis like its origin, no mesh axis twice, and `zero` over the largest axis
        left.

        `blocks` is the number of blocks of the last axis, if it has any: none is cut.
        """
        entries: list[_Part] = []
        for axis in axes:
            entry = spec[axis] if axis is not None and axis < len(spec) else None
            entries.append(None if set(_names(entry)) & set(_used(entries)) else entry)
        if self.zero and self.zero not in _used(entries):
            count = self.mesh.shape[self.zero]
            free = [i for i, axis in enumerate(axes) if axis is not None and entries[i] is None]
            fits = [i for i in free if sizes[i] and sizes[i] % count == 0]
            if fits and blocks and (blocks % count or sizes[-1] % blocks):
                fits = [i for i in fits if i != len(sizes) - 1]
            if fits:
                entries[max(fits, key=lambda i: sizes[i])] = self.zero
        return NamedSharding(self.mesh, PartitionSpec(*entries))


def _names(part: _Part) -> tuple[str, ...]:
    return () if part is None else (part,) if isinstance(part, str) else tuple(part)


def _used(parts: list[_Part]) -> list[str]:
    return [name for entry in parts for name in _names(entry)]


def _sized(params: Any, sizes: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Any:
    """Returns the parameters' dtypes with shapes by `sizes`, without shardings."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(sizes(x.shape), x.dtype), params)


def _apart(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns a shape with unique sizes in the same order, so factored state stays factored."""
    return tuple(n * (len(shape) + 1) + i for i, n in enumerate(shape))


def _is_coded(x: Any) -> bool:
    return isinstance(x, Coded)
