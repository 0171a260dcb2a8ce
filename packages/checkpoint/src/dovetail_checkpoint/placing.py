# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Pieces on devices: where a source leaf is read to, and how its blocks come into the result.

Starts and offsets are traced, so that all layers of a stack share one compilation.
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, Sharding

from dovetail_checkpoint.pieces import Built, Piece, arranged


def working_place(place: Sharding) -> Sharding:
    """`place` as the pieces are computed in: device memory, and no axis types to obey."""
    if not isinstance(place, NamedSharding):
        return place
    return NamedSharding(_auto_mesh(place), place.spec)


def place_of_source(piece: Piece, shape: tuple[int, ...], place: Sharding) -> Sharding:
    """Where a source leaf of `shape` lies best for a result in `place`: cut along the same axes.

    Axes that the mesh does not divide are not cut.
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
    """Zeros to be filled with pieces."""
    dtype = jnp.dtype(built.dtype)
    return jax.jit(partial(jnp.zeros, built.shape, dtype), out_shardings=working_place(place))()


def cut(value: jax.Array, piece: Piece, place: Sharding) -> jax.Array:
    """The piece alone."""
    starts = np.array([start for start, _ in piece.region], np.int32)
    return _cut(value, starts, form=_form(piece), place=working_place(place))


def update(into: jax.Array, value: jax.Array | np.ndarray, piece: Piece) -> jax.Array:
    """`into`, which is donated, with the piece of a source in its place."""
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
    """What all pieces share that one compilation serves: no names, no starts, no offsets."""
    region = tuple((0, stop - start) for start, stop in piece.region)
    return replace(piece, source="", region=region, offset=(0,) * len(piece.offset))


def _auto_mesh(place: NamedSharding) -> Mesh:
    names = place.mesh.axis_names
    return Mesh(np.asarray(place.mesh.devices), names, axis_types=(AxisType.Auto,) * len(names))


def _ways(mesh: Mesh, names: str | tuple[str, ...] | None) -> int:
    """Into how many parts a mesh cuts an axis that is laid along `names`."""
    listed = (names,) if isinstance(names, str) else names or ()
    return int(np.prod([mesh.shape[name] for name in listed], dtype=np.int64))
