# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The axes of a mesh: their types, and their uses.

On Explicit axes (the default of `jax.make_mesh`) the type of an array holds its sharding, and
operations that Auto axes leave to the partitioner are errors: a product over two split dimensions,
a sharding constraint. Models, losses and optimizers are written for any mesh, so the trainer runs
on the same devices with Auto axes and accepts arrays of either kind. An array moves between the two
meshes without a copy, because each device holds the same shard.
"""

import logging
from typing import Any, TypeVar

import jax
from jax.core import Tracer
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding

from dovetail_train.mesh.mesh import BATCH_AXES

_log = logging.getLogger(__name__)
AnyMesh = TypeVar("AnyMesh", bound=Mesh | AbstractMesh)


def auto_mesh(mesh: AnyMesh) -> AnyMesh:
    """Returns the mesh of equal devices, axis names and sizes whose axes are all `AxisType.Auto`.

    A mesh of Auto axes is returned as it is.

    Raises:
        ValueError: An axis is Manual, as inside `jax.shard_map`.

    Example:

        >>> import jax
        >>> mesh = jax.make_mesh((1, 1), ("data", "fsdp"))  # Explicit axes
        >>> auto_mesh(mesh).axis_types
        (Auto, Auto)
    """
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    manual = [axis for axis, kind in kinds.items() if kind == AxisType.Manual]
    if manual:
        raise ValueError(
            f"the axes of a mesh must be Auto or Explicit, got Manual axes {manual} of "
            f"{dict(mesh.shape)}; pass the mesh itself, from outside of jax.shard_map"
        )
    if all(kind == AxisType.Auto for kind in mesh.axis_types):
        return mesh
    twin: Any = mesh.update(axis_types=(AxisType.Auto,) * len(kinds))
    return twin


def retyped(tree: Any, mesh: Mesh | AbstractMesh) -> Any:
    """Returns `tree` with each array on `mesh`, if it lies on that mesh with other axis types.

    Buffers are shared. Arrays elsewhere stay the same, and so do traced values.

    Args:
        tree: Arrays, `jax.ShapeDtypeStruct` and `NamedSharding`.
        mesh: The mesh.
    """

    def leaf(x: Any) -> Any:
        now = x if isinstance(x, NamedSharding) else getattr(x, "sharding", None)
        if isinstance(x, Tracer) or not isinstance(now, NamedSharding) or now.mesh == mesh:
            return x
        if not _is_twin(now.mesh, mesh):
            return x
        sharding = NamedSharding(mesh, now.spec, memory_kind=now.memory_kind)
        if isinstance(x, NamedSharding):
            return sharding
        if isinstance(x, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
        shards = [shard.data for shard in x.addressable_shards]
        return jax.make_array_from_single_device_arrays(x.shape, sharding, shards, dtype=x.dtype)

    return jax.tree.map(leaf, tree)


def _is_twin(mesh: Mesh | AbstractMesh, other: Mesh | AbstractMesh) -> bool:
    """Tests for meshes that differ in their axis types at most."""
    if mesh.axis_names != other.axis_names:
        return False
    return mesh.update(axis_types=other.axis_types) == other


def check_uses(mesh: Mesh | AbstractMesh, shardings: Any) -> None:
    """Raises ValueError for an axis above 1 that splits neither rows, tokens nor a parameter.

    Its devices would all compute the same. Warns of an fsdp axis that splits no parameter.

    Args:
        mesh: The mesh.
        shardings: NamedShardings of the parameters.
    """
    split: set[str] = set()
    for sharding in jax.tree.leaves(shardings):
        for axes in sharding.spec:
            split.update((axes,) if isinstance(axes, str) else axes or ())
    used = {*BATCH_AXES, "context", *split}
    idle = {axis: size for axis, size in mesh.shape.items() if size > 1 and axis not in used}
    if idle:
        axis, size = next(iter(idle.items()))
        raise ValueError(
            f"every mesh axis above 1 must split rows ({', '.join(BATCH_AXES)}), tokens (context) "
            f"or a parameter, got {axis}={size}, which splits none of them, so its {size} groups "
            f"of devices would compute the same; write data={size} instead of {axis}={size}, or "
            f"place parameters with a NamedSharding over {axis!r}, as abstract(config, mesh=mesh) "
            f"and init(config, mesh=mesh, seed=0) of dovetail_models do"
        )
    if mesh.shape.get("fsdp", 1) > 1 and "fsdp" not in split:
        _log.warning(
            "fsdp=%d splits rows and no parameter, so each device holds all of them: place them "
            "with a NamedSharding over 'fsdp', as abstract(config, mesh=mesh) of dovetail_models "
            "does, or write data= instead of fsdp=",
            mesh.shape["fsdp"],
        )
