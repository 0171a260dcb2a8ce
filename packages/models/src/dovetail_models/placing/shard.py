# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Sharding by logical names and one ordered table of rules.

Every dimension of a parameter or an activation has a logical name. A rule maps a name to mesh axes;
the first rule of a name whose axes divide the dimension applies. A rule to None leaves the
dimension unsharded; without one an indivisible dimension is an error. Axes absent from a mesh are
ignored, so one table serves every mesh.

Parameters carry their names in NNX metadata: `out_sharding`, with `units`, the number of elements
that must stay together (a head is never split).

The metadata `keep_dtype=True` marks a Variable that keeps float32 in a model of another dtype: a
rounded selection bias would select other experts. `load`, `cast` and the compute cast of
dovetail-train read it.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
from flax import nnx
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

Rules: TypeAlias = tuple[tuple[str, str | tuple[str, ...] | None], ...]
Names: TypeAlias = tuple[str | None, ...]
Constrain: TypeAlias = Callable[[jax.Array, Names], jax.Array]

#: Mesh axis of each logical axis. The first rule whose mesh axis is free and divides it holds.
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
    ("adapters", None),
    ("router", None),
    # Activations. An indivisible batch, as in generation, stays whole.
    ("batch", ("data", "fsdp", "expert")),
    ("batch", ("data", "fsdp")),
    ("batch", "data"),
    ("batch", None),
    ("seq", "context"),
    ("seq", None),
    # Tokens of the residual stream are independent, so they are split by tensor too (sequence
    # parallelism, 2205.05198): no additional communication, less memory.
    ("stream", ("context", "tensor")),
    ("stream", "context"),
    ("stream", None),
)


class Buffer(nnx.Variable[jax.Array]):
    """A saved value of a model without a gradient."""


# All saved Variables. Gradients and optimizers see only `nnx.Param`.
WEIGHTS = nnx.Any(nnx.Param, Buffer)


def named(
    *names: str, units: tuple[int, ...] | None = None, keep_dtype: bool = False
) -> dict[str, Any]:
    """Returns metadata of a parameter.

    Args:
        *names: Logical name of each dimension.
        units: Elements per unit of each dimension. None: 1.
        keep_dtype: The value stays float32 when the model's dtype changes.
    """
    # With eager_sharding flax would resolve the names as mesh axes during construction.
    units = units or (1,) * len(names)
    kept = {"keep_dtype": True} if keep_dtype else {}
    return {"out_sharding": names, "units": units, "eager_sharding": False, **kept}


def keeps_dtype(variable: nnx.Variable) -> bool:
    """Whether the Variable keeps its dtype when the model's dtype changes."""
    return bool(variable.get_metadata("keep_dtype", False))


def shardings(
    model: nnx.Module,
    mesh: Mesh | AbstractMesh,
    *,
    rules: Rules | None = None,
    only: nnx.filterlib.Filter = nnx.Param,
) -> nnx.State:
    """Returns a pytree of `NamedSharding` with the structure of `nnx.state(model, only)`.

    Args:
        model: The model, with arrays or without.
        mesh: The mesh; may be abstract.
        rules: Sharding rules. None: `RULES`.
        only: Filter of the Variables. `WEIGHTS` adds buffers.

    Raises:
        ValueError: The axes of a rule do not divide a dimension, or a name has no rule. The message
            names leaf, dimension and rule.

    Example:

        >>> from jax.sharding import AbstractMesh
        >>> from dovetail_models import abstract, llama, shardings
        >>> model = abstract(llama(vocab_size=64, embed=16, depth=1, heads=2, mlp=32))
        >>> places = shardings(model, AbstractMesh((2, 2), ("fsdp", "tensor")))
        >>> tuple(places["layers"][0]["attn"]["q"]["kernel"].get_value().spec)
        ('fsdp', 'tensor')
    """
    axes, rules = mesh.axis_names, RULES if rules is None else rules

    def place(path: tuple[Any, ...], param: nnx.Variable) -> nnx.Variable:
        names, units = param.get_metadata("out_sharding"), param.get_metadata("units")
        counts = [size // unit for size, unit in zip(param.shape, units, strict=True)]
        leaf = ".".join(map(str, path))
        spec = spec_of(counts, names, mesh=mesh, axes=axes, rules=rules, leaf=leaf)
        return param.replace(NamedSharding(mesh, spec))

    return nnx.map_state(place, nnx.state(model, only))


def spec_of(
    counts: Sequence[int],
    names: Names,
    *,
    mesh: Mesh | AbstractMesh,
    axes: Sequence[str],
    rules: Rules,
    leaf: str,
) -> PartitionSpec:
    """Returns the spec of dimensions with `counts` units. Each mesh axis is used once.

    Args:
        counts: Units of each dimension.
        names: Logical name of each dimension.
        mesh: The mesh.
        axes: Mesh axes to use.
        rules: Sharding rules.
        leaf: Name for error messages.
    """
    spec, free = [], {axis: mesh.shape[axis] for axis in axes}
    for dim, (count, name) in enumerate(zip(counts, names, strict=True)):
        used = () if name is None else _choose(name, count, free, rules, f"{leaf}[{dim}]")
        free = {axis: size for axis, size in free.items() if axis not in used}
        spec.append(used[0] if len(used) == 1 else used or None)
    return PartitionSpec(*spec)


def _choose(
    name: str, count: int, free: dict[str, int], rules: Rules, where: str
) -> tuple[str, ...]:
    """Returns the axes of the first rule for `name` that divides `count` units."""
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
