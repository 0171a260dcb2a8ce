# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Where each array lives on a mesh, decided by names and one ordered table.

Every dimension of a parameter or an activation has a logical name. A rule maps a name to mesh axes;
the first rule of that name whose axes divide the dimension wins. A rule to None keeps the dimension
whole; without one an indivisible dimension is an error. Axes that a mesh lacks count as absent, so
one table serves every mesh.

Parameters carry their names in NNX metadata: `out_sharding`, with `units`, the number of elements
that must stay together (a head is never split).
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
from flax import nnx
from jax.core import Tracer
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

Rules: TypeAlias = tuple[tuple[str, str | tuple[str, ...] | None], ...]
Names: TypeAlias = tuple[str | None, ...]
Constrain: TypeAlias = Callable[[jax.Array, Names], jax.Array]

RULES: Rules = (
    ("vocab", "tensor"),
    ("heads", "tensor"),
    ("kv_heads", "tensor"),
    ("kv_heads", None),
    ("mlp", "tensor"),
    ("embed", "fsdp"),
    ("experts", "expert"),
    ("experts", None),
    ("latent", None),
    ("norm", None),
    ("positions", None),
    ("types", None),
    ("patch", None),
    ("pooled", None),
    ("labels", None),
    ("rank", None),
    ("router", None),
    # Activations. A batch that the devices do not divide, as in generation, stays whole.
    ("batch", ("data", "fsdp", "expert")),
    ("batch", ("data", "fsdp")),
    ("batch", "data"),
    ("batch", None),
    ("seq", "context"),
    ("seq", None),
    # The tokens of the residual stream, where each is by itself: split by tensor too (sequence
    # parallelism, 2205.05198), which costs no more exchanges and holds less.
    ("stream", ("context", "tensor")),
    ("stream", "context"),
    ("stream", None),
)


class Buffer(nnx.Variable[jax.Array]):
    """A number that belongs to a model and is saved with it, but that no gradient trains."""


# Everything that a file holds. Gradients and optimizers see `nnx.Param` alone.
WEIGHTS = nnx.Any(nnx.Param, Buffer)


def named(*names: str, units: tuple[int, ...] | None = None) -> dict[str, Any]:
    """Metadata of a parameter: a logical name per dimension, and how many elements form a unit."""
    # Without eager_sharding=False, flax resolves the names as mesh axes while the module is built.
    units = units or (1,) * len(names)
    return {"out_sharding": names, "units": units, "eager_sharding": False}


def shardings(
    model: nnx.Module,
    mesh: Mesh | AbstractMesh,
    *,
    rules: Rules = RULES,
    only: nnx.filterlib.Filter = nnx.Param,
) -> nnx.State:
    """Pytree of `NamedSharding`, structured as `nnx.state(model, only)`.

    The mesh may be abstract and the model too. `only=WEIGHTS` takes buffers along. Raises
    ValueError for a dimension that the axes of its rule do not divide, naming the leaf, the
    dimension and the rule.
    """

    axes = mesh.axis_names

    def place(path: tuple[Any, ...], param: nnx.Variable) -> nnx.Variable:
        names, units = param.get_metadata("out_sharding"), param.get_metadata("units")
        counts = [size // unit for size, unit in zip(param.shape, units, strict=True)]
        leaf = ".".join(map(str, path))
        spec = _spec(counts, names, mesh=mesh, axes=axes, rules=rules, leaf=leaf)
        return param.replace(NamedSharding(mesh, spec))

    return nnx.map_state(place, nnx.state(model, only))


def constrain(x: jax.Array, names: Names, *, rules: Rules = RULES) -> jax.Array:
    """`x`, told to lie on the ambient mesh (`jax.set_mesh`) as `rules` place `names`.

    Without an ambient mesh, outside jit (where each operation follows its operands), or inside a
    `shard_map` over all axes, this is `x` itself.
    """
    mesh = jax.sharding.get_abstract_mesh()
    axes = [
        a for a, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind == AxisType.Auto
    ]
    if not axes or not isinstance(x, Tracer):
        return x
    spec = _spec(x.shape, names, mesh=mesh, axes=axes, rules=rules, leaf="activation")
    return jax.lax.with_sharding_constraint(x, spec)


def _spec(
    counts: Sequence[int],
    names: Names,
    *,
    mesh: Mesh | AbstractMesh,
    axes: Sequence[str],
    rules: Rules,
    leaf: str,
) -> PartitionSpec:
    """The spec of dimensions that hold `counts` units each; an axis of the mesh serves once."""
    spec, free = [], {axis: mesh.shape[axis] for axis in axes}
    for dim, (count, name) in enumerate(zip(counts, names, strict=True)):
        chosen = () if name is None else _choose(name, count, free, rules, f"{leaf}[{dim}]")
        free = {axis: size for axis, size in free.items() if axis not in chosen}
        spec.append(chosen[0] if len(chosen) == 1 else chosen or None)
    return PartitionSpec(*spec)


def _choose(
    name: str, count: int, free: dict[str, int], rules: Rules, where: str
) -> tuple[str, ...]:
    """The axes of the first rule for `name` that divides `count` units."""
    tried = []
    for _, axes in (rule for rule in rules if rule[0] == name):
        wanted = (axes,) if isinstance(axes, str) else axes or ()
        wanted = tuple(axis for axis in wanted if axis in free)
        ways = math.prod(free[axis] for axis in wanted)
        if count % ways == 0:
            return wanted
        tried.append(f"{axes} ({ways} ways)")
    if not tried:
        raise ValueError(
            f"Every logical name must have a rule, got none for name={name!r} of {where}. "
            f"Add ({name!r}, None) to rules to keep that dimension whole."
        )
    raise ValueError(
        f"The mesh axes of a rule must divide the dimension, got {where} name={name!r} with "
        f"{count} units over {', '.join(tried)}. Change the mesh, or add ({name!r}, None) to "
        "rules to keep that dimension whole."
    )
