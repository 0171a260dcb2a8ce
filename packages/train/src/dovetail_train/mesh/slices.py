# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Slices: groups of devices with fast links inside and slow ones between them.

A TPU pod slice has its own interconnect. Slices, and many hosts of GPUs, exchange data over the
data center's network (DCN), which is an order of magnitude slower. So an axis that exchanges little
crosses slices: data exchanges gradients once per step. JAX arranges the devices
(`create_hybrid_device_mesh`); this decides which axis crosses, and says it for a mesh.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jax.experimental.mesh_utils import create_hybrid_device_mesh
from jax.sharding import AbstractMesh, Mesh
from jaxtyping import Int

from dovetail_train.mesh.devices import slice_of

# Axes that may cross slices. The others exchange activations in every layer.
DCN_AXES = ("stage", "data", "fsdp")


def hybrid_devices(
    sizes: Mapping[str, int],
    devices: Sequence[Any],
    dcn: Mapping[str, int] | None,
    *,
    split: bool = False,
) -> np.ndarray:
    """Returns the devices of a mesh over several slices.

    Without `dcn` the data axis crosses the slices. On devices without slices, `dcn` is for
    processes.

    Args:
        sizes: Size of each axis, in the order of the mesh.
        devices: The devices.
        dcn: Slices along each axis that crosses.
        split: Let several axes share a dimension of a TPU slice.

    Raises:
        ValueError: The slices are unequal, are not the product of `dcn`, or do not divide an axis.
    """
    owners = Counter(map(slice_of, devices))
    by_process = dcn is not None and len(owners) == 1
    if by_process:
        owners = Counter(device.process_index for device in devices)
    wanted = {"data": len(owners)} if dcn is None else dict(dcn)
    check_dcn(sizes, wanted)
    what = "processes" if by_process else "slices"
    if math.prod(wanted.values()) != len(owners):
        raise ValueError(
            f"the product of dcn must be the number of {what}, got dcn={wanted} for {len(owners)} "
            f"{what}; write dcn={{'data': {len(owners)}}}"
        )
    if len(set(owners.values())) > 1:
        raise ValueError(
            f"every one of the {what} must have as many devices, got {dict(owners)}; pass devices= "
            f"with {min(owners.values())} of each"
        )
    return create_hybrid_device_mesh(
        [size // wanted.get(axis, 1) for axis, size in sizes.items()],
        [wanted.get(axis, 1) for axis in sizes],
        devices,
        process_is_granule=by_process,
        allow_split_physical_axes=split,
    )


def check_dcn(sizes: Mapping[str, int], dcn: Mapping[str, int]) -> None:
    """Raises ValueError unless `dcn` divides axes that may cross slices.

    Args:
        sizes: Size of each axis.
        dcn: Slices along each axis that crosses.
    """
    for axis, slices in dcn.items():
        if axis not in DCN_AXES or axis not in sizes:
            raise ValueError(
                f"only the axes {', '.join(DCN_AXES)} of a mesh may cross slices, got dcn="
                f"{dict(dcn)}; write dcn={{'data': {slices}}}"
            )
        if slices < 1 or sizes[axis] % slices:
            raise ValueError(
                f"the slices along an axis must divide it, got {axis}={sizes[axis]} over {slices} "
                f"slices; write {axis}={max(1, slices)}, or a multiple of it, or let another axis "
                f"cross with dcn={{'fsdp': {slices}}}"
            )


def slice_ids(
    mesh: Mesh | AbstractMesh, *, dcn: Mapping[str, int] | None = None
) -> Int[np.ndarray, "..."]:
    """Returns the slice of each device of a mesh, in the shape of the mesh.

    Args:
        mesh: The mesh.
        dcn: Slices along each axis that crosses. Default: read off the devices. Those of an
            abstract mesh are all of one slice.

    Raises:
        ValueError: `dcn` does not divide the axes.

    Example:

        >>> from dovetail_train import abstract_mesh
        >>> slice_ids(abstract_mesh(4, data=2), dcn={"data": 2}).reshape(-1)
        array([0, 0, 1, 1])
    """
    if dcn is None and isinstance(mesh, Mesh):
        return np.vectorize(slice_of, otypes=[np.int64])(mesh.devices)
    check_dcn(mesh.shape, dcn or {})
    along = [(dcn or {}).get(axis, 1) for axis in mesh.shape]
    ids = np.arange(math.prod(along)).reshape(along)
    for i, (size, slices) in enumerate(zip(mesh.shape.values(), along, strict=True)):
        ids = np.repeat(ids, size // slices, axis=i)
    return ids
