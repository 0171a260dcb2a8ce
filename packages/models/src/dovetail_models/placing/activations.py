# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Placement of activations: constraints on Auto axes, and whole methods on Explicit ones.

Explicit axes are the default of `jax.make_mesh`. There the type of an array holds its sharding, and
every operation has to derive the type of its result. A product over a split dimension or a lookup
in a split table has no derivable one and is an error. The alternative, an `out_sharding` for each
operation of each layer, would bind the layers to one table of rules and to Explicit axes. Instead a
whole method runs on Auto axes, where the partitioner decides and `constrain` guides it. Its results
return to Explicit axes, placed by the rules of their logical names.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.core import Tracer
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding

from dovetail_models.placing.shard import RULES, Names, Rules, spec_of

Place: TypeAlias = Callable[[tuple[int, ...], Names, Rules], NamedSharding]


def constrain(x: jax.Array, names: Names, *, rules: Rules = RULES) -> jax.Array:
    """Constrains `x` to the sharding that `rules` give for `names` on the ambient mesh.

    Returns `x` itself without an ambient mesh (`jax.set_mesh`), outside jit (each operation then
    follows its operands), and inside a `shard_map` over all axes.

    Args:
        x: An activation.
        names: Logical names of its dimensions.
        rules: Sharding rules.
    """
    mesh = jax.sharding.get_abstract_mesh()
    axes = [
        a for a, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind == AxisType.Auto
    ]
    if not axes or not isinstance(x, Tracer):
        return x
    spec = spec_of(x.shape, names, mesh=mesh, axes=axes, rules=rules, leaf="activation")
    return jax.lax.with_sharding_constraint(x, spec)


def on_auto_axes(
    places: Callable[..., Any],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns a decorator for a method of a module. It then works on Explicit axes as on Auto ones.

    The axes are those of the ambient mesh (`jax.set_mesh`), or else of the module's parameters.

    Args:
        places: (module, place, *args, **options) -> sharding of each result, a pytree prefix;
            `place(shape, names, rules)` gives that of a shape and its logical names.

    Returns:
        The decorator.
    """

    def decorate(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def run(module: Any, *args: Any, **options: Any) -> Any:
            mesh = _explicit_mesh(module)
            if mesh is None:
                return method(module, *args, **options)
            graph, state = nnx.split(module)
            leaves, tree = jax.tree.flatten((args, options))
            fixed = [None if _is_array(x) else x for x in leaves]
            arrays = [jnp.asarray(x) if _is_array(x) else None for x in leaves]

            def call(state: Any, arrays: Any) -> Any:
                pairs = zip(fixed, arrays, strict=True)
                args, options = jax.tree.unflatten(tree, [a if x is None else x for x, a in pairs])
                return method(nnx.merge(graph, state), *args, **options)

            if isinstance(mesh, Mesh) and not _is_traced((state, arrays)):
                with jax.set_mesh(auto_mesh(mesh)):  # values stay concrete, so they are checked
                    result = call(*retyped((state, arrays), auto_mesh(mesh)))
                return retyped(result, mesh)
            out = places(module, _placing(mesh), *args, **options)
            on_auto: Any = jax.sharding.auto_axes(call, out_sharding=out)
            return on_auto(state, arrays)

        return run

    return decorate


def auto_mesh(mesh: Any) -> Any:
    """Returns the mesh of equal devices, names and sizes with Auto axes."""
    return mesh.update(axis_types=(AxisType.Auto,) * len(mesh.axis_names))


def retyped(tree: Any, mesh: Mesh) -> Any:
    """Returns `tree` with each array on `mesh`, if it lies on that mesh with other axis types.

    Buffers are shared.
    """

    def leaf(x: Any) -> Any:
        now = x.sharding if isinstance(x, jax.Array) else None
        if not isinstance(now, NamedSharding) or auto_mesh(now.mesh) != auto_mesh(mesh):
            return x
        sharding = NamedSharding(mesh, now.spec, memory_kind=now.memory_kind)
        shards = [shard.data for shard in x.addressable_shards]
        return jax.make_array_from_single_device_arrays(x.shape, sharding, shards, dtype=x.dtype)

    return jax.tree.map(leaf, tree)


def _is_array(x: Any) -> bool:
    return isinstance(x, jax.Array | np.ndarray)


def is_explicit(mesh: Mesh | AbstractMesh) -> bool:
    """Tests for a mesh with an Explicit axis."""
    return AxisType.Explicit in mesh.axis_types


def _is_traced(arrays: Any) -> bool:
    # Without traced arguments, an operation shows whether a program around the call is traced.
    return any(isinstance(x, Tracer) for x in (*jax.tree.leaves(arrays), jax.lax.full((), 0)))


def _explicit_mesh(module: nnx.Module) -> Mesh | AbstractMesh | None:
    """Returns the mesh in use if it has Explicit axes: of devices, if the parameters lie there."""
    ambient, own = jax.sharding.get_abstract_mesh(), _mesh_of(module)
    if not ambient.empty:
        mesh = own if isinstance(own, Mesh) and own.abstract_mesh == ambient else ambient
    else:
        mesh = own
    return mesh if mesh is not None and is_explicit(mesh) else None


def _mesh_of(module: nnx.Module) -> Mesh | AbstractMesh | None:
    """Returns the mesh of the first array of a module."""
    variables = (x for _, x in nnx.iter_graph(module) if isinstance(x, nnx.Variable))
    for x in jax.tree.leaves(next(variables, None)):
        if isinstance(x, Tracer):
            return jax.typeof(x).sharding.mesh
        if isinstance(x, jax.Array) and isinstance(x.sharding, NamedSharding):
            return x.sharding.mesh
    return None


def _placing(mesh: Mesh | AbstractMesh) -> Place:
    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    axes = [axis for axis, kind in kinds if kind == AxisType.Explicit]

    def place(shape: tuple[int, ...], names: Names, rules: Rules) -> NamedSharding:
        spec = spec_of(shape, names, mesh=mesh, axes=axes, rules=rules, leaf="activation")
        return NamedSharding(mesh, spec)

    return place


def place_like(place: Place, x: Any) -> NamedSharding:
    """Returns the sharding of the type of `x` on the mesh of `place`."""
    return NamedSharding(place((), (), RULES).mesh, jax.typeof(x).sharding.spec)
