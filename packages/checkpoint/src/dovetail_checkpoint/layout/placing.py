# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Pieces on devices: placement of source leaves, cutting, and writing into the result.

Starts and offsets are traced, so all layers of a stack share one compilation.
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, Sharding

from dovetail_checkpoint.layout.pieces import Built, Piece, arranged


def working_place(place: Sharding) -> Sharding:
    """Returns `place` for computing: in device memory, with Auto axes."""
    if not isinstance(place, NamedSharding):
        return place
    return NamedSharding(_auto_mesh(place), place.spec)


def place_of_source(piece: Piece, shape: tuple[int, ...], place: Sharding) -> Sharding:
    """Returns the best sharding for reading a source leaf: cut along the same axes as the result.

    Axes that the mesh does not divide are not cut.

    Args:
        piece: The first piece of the leaf.
        shape: Shape of the source leaf.
        place: Sharding of the result.
    """
    if not isinstance(place, NamedSharding):  # one device: JAX has no other public kind
        return place
    mesh = _auto_mesh(place)
    spec = [None] * len(shape)
    for axis, names in zip(piece.axes, place.spec, strict=False):
        if axis is not None and shape[axis] % _ways(mesh, names) == 0:
            spec[axis] = names
    return NamedSharding(mesh, PartitionSpec(*spec))


def empty(built: Built, place: Sharding) -> jax.Array:
    """Returns zeros for the pieces to fill."""
    dtype = jnp.dtype(built.dtype)
    return jax.jit(partial(jnp.zeros, built.shape, dtype), out_shardings=working_place(place))()


def cut(value: jax.Array, piece: Piece, place: Sharding) -> jax.Array:
    """Returns the piece alone.

    Args:
        value: The source leaf.
        piece: The piece.
        place: Sharding of the result.
    """
    starts = np.array([start for start, _ in piece.region], np.int32)
    return _cut(value, starts, form=_form(piece), place=working_place(place))


def update(into: jax.Array, value: jax.Array | np.ndarray, piece: Piece) -> jax.Array:
    """Returns `into` with a piece of the source in its place. `into` is donated.

    Args:
        into: The result so far.
        value: The source leaf.
        piece: The piece.
    """
    starts = np.array([start for start, _ in piece.region], np.int32)
    offsets = np.array(piece.offset, np.int32)
    return _update(into, value, starts, offsets, form=_form(piece), place=into.sharding)


@partial(jax.jit, static_argnames=("form", "place"))
def _cut(value: jax.Array, starts: jax.Array, *, form: Piece, place: Sharding) -> jax.Array:
    sizes = [stop for _, stop in form.region]
    block = arranged(lax.dynamic_slice(value, list(starts), sizes), form)
    return lax.with_sharding_constraint(block, place)


@partial(jax.jit, static_argnames=("form", "place"), donate_argnums=0)
def _update(
    into: jax.Array,
    value: jax.Array,
    starts: jax.Array,
    offsets: jax.Array,
    *,
    form: Piece,
    place: Sharding,
) -> jax.Array:
    sizes = [stop for _, stop in form.region]
    block = arranged(lax.dynamic_slice(value, list(starts), sizes), form)
    return lax.with_sharding_constraint(lax.dynamic_update_slice(into, block, list(offsets)), place)


def _form(piece: Piece) -> Piece:
    """Returns the piece without names, starts and offsets: equal forms share a compilation."""
    region = tuple((0, stop - start) for start, stop in piece.region)
    return replace(piece, source="", region=region, offset=(0,) * len(piece.offset))


def _auto_mesh(place: NamedSharding) -> Mesh:
    names = place.mesh.axis_names
    return Mesh(np.asarray(place.mesh.devices), names, axis_types=(AxisType.Auto,) * len(names))


def _ways(mesh: Mesh, names: str | tuple[str, ...] | None) -> int:
    """Returns the number of shards of an axis laid along the mesh axes `names`."""
    listed = (names,) if isinstance(names, str) else names or ()
    return int(np.prod([mesh.shape[name] for name in listed], dtype=np.int64))
