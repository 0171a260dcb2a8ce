# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Operations on arrays that are sharded over a mesh.

Under an Explicit mesh (the default of `jax.make_mesh`) the type of an array contains its sharding.
Loops that begin with fresh zeros, dynamic slices and custom calls then fail or need annotations. An
operation that is independent along some axes (batch, heads) therefore runs unchanged on each shard,
inside `jax.shard_map`. Under an Auto mesh types have no sharding, and the partitioner splits the
same code.

Inside of a user's `jax.shard_map` the type of an array contains the mesh axes over whose devices
its value varies (its `vma`, "varying manual axes"). A loop that begins with fresh zeros and adds
data has carries of two types, which JAX refuses. Operations therefore make their arguments vary
alike, and first carries vary with the arguments. JAX transposes the first step to a sum: the
gradient of an argument that is equal on all devices is summed over them.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.sharding import AxisType, NamedSharding, PartitionSpec, reshard

TreeT = TypeVar("TreeT")
# Sharding of one axis in `jax.Array.sharding.spec`: none, over one mesh axis, over several.
_Part = str | tuple[str, ...] | None


def per_shard(
    operation: str,
    function: Callable[..., Any],
    arrays: Sequence[Any],
    axes: Sequence[str],
    *,
    out: Any,
    may: str,
    instead: str,
    summed: str = "",
    checked: bool = False,
) -> Any:
    """Runs `function(*arrays)` on each shard if the types of `arrays` are sharded.

    Args:
        operation: Name for error messages.
        function: The operation on one shard.
        arrays: Its arguments. They may be None.
        axes: One letter for each axis of each array, such as "btnh". Axes with the same letter are
            split alike: an unsharded one is split to fit, or stays whole if its size is 1.
        out: Letters of each result, in a pytree with the result's structure.
        may: Letters along which the operation is independent.
        instead: Advice at the end of the error message for a sharded letter outside `may`.
        summed: Letters of `may` over whose shards the results are summed.
        checked: Whether `function` lets its arguments vary as it needs (see `varying`), so that the
            map can check the varying axes of its results.

    Returns:
        The result of `function`, sharded according to `out`.

    Raises:
        ValueError: An axis outside `may` is sharded, a letter is sharded differently in two arrays,
            two letters are sharded over one mesh axis, or the number of shards does not divide an
            axis.
    """
    mesh, parts = _parts(operation, arrays, axes, may=may, instead=instead)
    arrays = list(arrays) if checked else varying(list(arrays), arrays)
    if mesh is None:
        return function(*arrays)
    _check_sizes(operation, mesh, parts, arrays, axes)

    def spec(letters: str, shape: tuple[int, ...] | None = None) -> PartitionSpec:
        sizes = shape or (0,) * len(letters)
        split = [None if s == 1 else parts.get(x) for x, s in zip(letters, sizes, strict=True)]
        return PartitionSpec(*split)

    given = [i for i, array in enumerate(arrays) if array is not None]
    specs = [spec(axes[i], arrays[i].shape) for i in given]
    names = [name for letter in summed for name in _names(parts.get(letter))]

    def body(*shards: Any) -> Any:
        filled: list[Any] = [None] * len(arrays)
        for i, shard in zip(given, shards, strict=True):
            filled[i] = shard
        result = function(*filled)
        return jax.lax.psum(result, tuple(names)) if names else result

    # Without the check of varying axes: arguments vary alike inside (see `varying`). By their types
    # so do results that are equal on all devices, as the plan of a `permute` split along d.
    mapped = jax.shard_map(
        body,
        mesh=mesh,
        in_specs=tuple(specs),
        out_specs=jax.tree.map(spec, out),
        check_vma=checked,
    )
    split = (reshard(arrays[i], NamedSharding(mesh, s)) for i, s in zip(given, specs, strict=True))
    return mapped(*split)


def _parts(
    operation: str, arrays: Sequence[Any], axes: Sequence[str], *, may: str, instead: str
) -> tuple[Any, dict[str, _Part]]:
    """Returns the mesh of the types (None if nothing is sharded) and each letter's mesh axes."""
    mesh, parts = None, {}
    for array, letters in zip(arrays, axes, strict=True):
        if array is None:
            continue
        sharding = jax.typeof(array).sharding
        for letter, mesh_axes in zip(letters, sharding.spec, strict=True):
            if mesh_axes is None:
                continue
            # For a concrete array, the mesh of its devices: no mesh needs to be in scope.
            mesh = sharding.mesh if isinstance(array, Tracer) else array.sharding.mesh
            if letter not in may:
                raise ValueError(
                    f"{operation} may be sharded along {', '.join(may)} of {_words(axes)}, got "
                    f"{letter} of {letters} sharded over {mesh_axes!r}. {instead}"
                )
            if parts.setdefault(letter, mesh_axes) != mesh_axes:
                raise ValueError(
                    f"{operation} needs {letter} sharded alike in all its arguments, got "
                    f"{parts[letter]!r} and {mesh_axes!r}. Use jax.sharding.reshard on one of them."
                )
    _check_apart(operation, parts)
    return mesh, parts


def _check_apart(operation: str, parts: dict[str, _Part]) -> None:
    letters: dict[str, str] = {}
    for letter, mesh_axes in parts.items():
        for name in _names(mesh_axes):
            if letters.setdefault(name, letter) != letter:
                raise ValueError(
                    f"{operation} needs one letter over each mesh axis, got {letters[name]} and "
                    f"{letter} sharded over {name!r}. Use jax.sharding.reshard to shard one of "
                    "them over other axes."
                )


def _check_sizes(
    operation: str, mesh: Any, parts: dict[str, _Part], arrays: Sequence[Any], axes: Sequence[str]
) -> None:
    for array, letters in zip(arrays, axes, strict=True):
        if array is None:
            continue
        for letter, size in zip(letters, array.shape, strict=True):
            shards = math.prod(mesh.shape[name] for name in _names(parts.get(letter)))
            if size > 1 and size % shards:
                raise ValueError(
                    f"{operation} needs {letter} of all its arguments divided by the {shards} "
                    f"shards of {parts[letter]!r}, got {letter}={size} in {letters} of shape "
                    f"{array.shape}. Use jax.sharding.reshard over fewer devices."
                )


def _words(axes: Sequence[str]) -> str:
    return " ".join(filter(None, axes))


def _names(part: _Part) -> tuple[str, ...]:
    if part is None:
        return ()
    return (part,) if isinstance(part, str) else part


def is_single(*arrays: Any) -> bool:
    """Tests whether a call of these arrays runs on one device, or inside of a user's shard."""
    plain = (jax.Array, np.ndarray, jax.ShapeDtypeStruct)
    arrays = tuple(a if isinstance(a, plain) else jnp.asarray(a) for a in arrays)  # of NNX
    split = (names for array in arrays for names in jax.typeof(array).sharding.spec)
    return is_whole(*arrays) and all(names is None for names in split)


def is_whole(*arrays: Any) -> bool:
    """Tests whether a call of these arrays is lowered for one device, or for shards by `per_shard`.

    XLA's partitioner has no rule for a custom call: Pallas's Mosaic GPU refuses to be lowered for
    several devices outside of `jax.shard_map`, and XLA gathers the operands of a call of cuDNN by
    `jax.ffi`. Under `jax.jit` with `in_shardings` alone no type tells, so a traced call without a
    mesh is whole only in a process that sees one device.

    Args:
        arrays: Arguments of a call, without None.
    """
    types = [jax.typeof(array).sharding for array in arrays]
    meshes = [jax.sharding.get_abstract_mesh(), *(kind.mesh for kind in types)]
    known = [mesh for mesh in meshes if mesh.abstract_device is not None or not mesh.empty]
    for mesh in known:
        axes = {kind for kind, n in zip(mesh.axis_types, mesh.axis_sizes, strict=True) if n > 1}
        split = any(names is not None for kind in types for names in kind.spec)
        if not (axes <= {AxisType.Manual} or (axes == {AxisType.Explicit} and split)):
            return False
    if known:
        return True
    concrete = [array for array in arrays if isinstance(array, jax.Array | np.ndarray)]
    if len(concrete) < len(arrays) or any(isinstance(array, Tracer) for array in concrete):
        return jax.device_count() == 1
    on_devices = [array for array in concrete if isinstance(array, jax.Array)]
    return all(len(array.sharding.device_set) == 1 for array in on_devices)


def varying(tree: TreeT, *like: Any) -> TreeT:
    """Returns `tree` with arrays that vary over all mesh axes of `like`; outside of maps unchanged.

    Args:
        tree: Pytree of arrays.
        like: Pytrees of arrays.
    """
    return vary_over(frozenset().union(*map(varies, jax.tree.leaves(like))), tree)


def vary_over(axes: frozenset[str], tree: TreeT) -> TreeT:
    """Returns `tree` with arrays that vary over `axes` too."""
    return jax.tree.map(lambda array: _cast(array, axes), tree) if axes else tree


def varies(array: Any) -> frozenset[str]:
    """Returns the mesh axes over whose devices the value of `array` varies, by its type."""
    return jax.typeof(array).manual_axis_type.varying


def _cast(array: Any, axes: frozenset[str]) -> Any:
    missing = tuple(sorted(axes - varies(array)))
    return lax.pcast(array, missing, to="varying") if missing else array
