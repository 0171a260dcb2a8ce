# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Placement of new arrays: on the mesh of old ones, with a spec derived from theirs."""

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec

from dovetail_models.placing.activations import auto_mesh, is_explicit, retyped

# Value of a Variable: an array, or its shape and dtype.
Leaf: TypeAlias = jax.Array | jax.ShapeDtypeStruct
Dims: TypeAlias = tuple[int | None, ...]


def build(
    make: Callable[..., jax.Array], *operands: Any, like: Leaf, dims: Dims | None = None
) -> Any:
    """Returns `make(*operands)`, placed like `like`.

    Args:
        make: Function of the operands.
        *operands: Its arguments.
        like: The array that gives mesh and spec. With a `jax.ShapeDtypeStruct` nothing is computed,
            and the result is one too.
        dims: Dimension d of the result is split as dimension `dims[d]` of `like`; None is not
            split. Default: the dimensions of `like`.

    Raises:
        ValueError: The mesh axes do not divide a dimension.
    """
    value = _made(make, operands, like)
    place = _place(like, range(like.ndim) if dims is None else dims, value.shape)
    if isinstance(value, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=place)
    return value if place is None else jax.device_put(value, place)


def _made(make: Callable[..., Any], operands: Any, like: Leaf) -> Any:
    """Returns `make(*operands)`: a struct if `like` is one, else an array."""
    if isinstance(like, jax.ShapeDtypeStruct):
        return jax.eval_shape(make, *jax.tree.map(_unplaced, operands))
    if not isinstance(like, jax.Array) or isinstance(like, Tracer):
        return make(*operands)  # it refuses a quantized kernel by itself
    now = like.sharding
    if not isinstance(now, NamedSharding) or not is_explicit(now.mesh):
        return make(*operands)
    auto = auto_mesh(now.mesh)  # on Explicit axes most of what surgery does has no type
    with jax.set_mesh(auto):
        return make(*retyped(operands, auto))


def _unplaced(x: Any) -> Any:
    is_struct = isinstance(x, jax.ShapeDtypeStruct)
    return jax.ShapeDtypeStruct(x.shape, x.dtype) if is_struct else x


def _place(like: Leaf, dims: Any, shape: tuple[int, ...]) -> NamedSharding | None:
    now = like.sharding
    if not isinstance(now, NamedSharding):
        return None
    old = (*now.spec, *[None] * (like.ndim - len(now.spec)))
    spec = [None if d is None else old[d] for d in dims]
    for size, axes in zip(shape, spec, strict=True):
        names = (axes,) if isinstance(axes, str) else axes or ()
        ways = math.prod(now.mesh.shape[name] for name in names)
        if size % ways:
            raise ValueError(
                f"The mesh must divide a parameter as it did before, got {size} elements over "
                f"{names} ({ways} ways). Use a multiple of {ways}, or place the model on another "
                "mesh first."
            )
    return NamedSharding(now.mesh, PartitionSpec(*spec))
