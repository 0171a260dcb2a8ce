# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Codes on a mesh: sharded like the float weight.

Codes [*b, K, N] take the mesh axes of the weight. So do scales [*b, G, N] if the mesh divides them;
along other axes they are replicated, like an axis of size 1.
"""

import dataclasses
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from qwix import QArray

from dovetail_quant.codes.layout import PackedWeights
from dovetail_quant.matmul.scaled import TransposedCodes
from dovetail_quant.sites.kernel import Axes

Entries = tuple[Any, ...]  # of a PartitionSpec, one for each axis


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """The placement of the folded weight [*b, K, N]."""

    mesh: Mesh | AbstractMesh
    entries: Entries

    def sharding(self, shape: tuple[int, ...]) -> NamedSharding:
        """Returns the sharding of an array with these axes; those not divided by the mesh are
        replicated.
        """
        fit = (
            entry if size % _shards(self.mesh, entry) == 0 else None
            for size, entry in zip(shape, self.entries, strict=True)
        )
        return NamedSharding(self.mesh, PartitionSpec(*fit))

    def replaced(self, *entries: Any) -> "Place":
        """Returns the placement of another array on this mesh."""
        return dataclasses.replace(self, entries=entries)


def place_of(value: Any, axes: Axes, path: str) -> Place | None:
    """Returns the placement of a folded weight (array or `jax.ShapeDtypeStruct`); None on one
    device.

    Args:
        value: The weight.
        axes: Its axes.
        path: Its path, for the error.

    Raises:
        ValueError: An axis is sharded that folding puts inside another.
    """
    sharding = None if isinstance(value, Tracer) else getattr(value, "sharding", None)
    if not isinstance(sharding, NamedSharding) or sharding.mesh.size == 1:
        return None
    spec = tuple(sharding.spec) + (None,) * (len(axes.shape) - len(sharding.spec))
    groups = [axes.inputs, axes.outputs]
    if axes.batch:
        groups.insert(0, axes.batch)
    for group in groups:
        inner = [axis for axis in group[1:] if spec[axis] is not None]
        if inner and any(axes.shape[axis] > 1 for axis in group[: group.index(inner[0])]):
            raise ValueError(
                f"a weight that is quantized is sharded along the first of the axes {group} that "
                f"are folded, got {path!r} of shape {axes.shape} as {sharding.spec}; shard axis "
                f"{group[0]}, or leave the site out with a rule ({path!r}, None)"
            )
    entries = (next((spec[a] for a in group if spec[a] is not None), None) for group in groups)
    return Place(mesh=sharding.mesh, entries=tuple(entries))


def place_codes(q: QArray | PackedWeights, place: Place | None) -> QArray | PackedWeights:
    """Places codes, scales and zero points; unchanged for None."""
    if place is None:
        return jax.tree.map(jax.numpy.asarray, q)
    if isinstance(q, PackedWeights):
        return place_prepared(q, place)
    return jax.tree.map(lambda a: jax.device_put(a, place.sharding(a.shape)), q)


def place_divisor(scale: Any, place: Place | None) -> Array | None:
    """Places the divisor of x, [*b, K]."""
    if scale is None or place is None:
        return scale
    return jax.device_put(scale, place.replaced(*place.entries[:-1]).sharding(scale.shape))


def place_prepared(prepared: Any, place: Place | None) -> Any:
    """Places prepared weights: packed or transposed [*b, N, K] like [*b, K, N].

    Layouts of other libraries are left unchanged.
    """
    if place is None or not isinstance(prepared, PackedWeights | TransposedCodes | QArray):
        return prepared
    if isinstance(prepared, QArray):
        return place_codes(prepared, place)
    *lead, of_inputs, of_outputs = place.entries
    packed = place.replaced(*lead, of_outputs, of_inputs)
    return jax.tree.map(lambda a: jax.device_put(a, packed.sharding(a.shape)), prepared)


def _shards(mesh: Mesh | AbstractMesh, entry: Any) -> int:
    names = () if entry is None else entry if isinstance(entry, tuple) else (entry,)
    return int(np.prod([mesh.shape[name] for name in names], dtype=np.int64))
