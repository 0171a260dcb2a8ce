# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Weights of a bundle on devices: read into memory or mapped, sharded over a mesh."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from dovetail_serve._compat import Format, Layout
from dovetail_serve.bundle.arrays import SUB_BYTE, converted, stored
from dovetail_serve.bundle.digest import array_digest, on_all_cores
from dovetail_serve.bundle.folder import Folder, verify_folder
from dovetail_serve.bundle.manifest import WEIGHTS, ArrayEntry, Manifest
from dovetail_serve.errors import BundleError, IntegrityError
from dovetail_serve.loading.memory import WeightMemory
from dovetail_serve.types import Platform

# Host memory of a load onto an accelerator. Enough arrays for all cores to hash.
_GROUP_BYTES = 1 << 30
# What two loaded arrays have in common if one can take the place of the other: digest, dtype and
# shape in the file, dtype on the device, placement.
ShareKey = tuple[Any, ...]


def mesh_on(manifest: Manifest, devices: Sequence[Any]) -> Mesh | None:
    """Returns the mesh of a sharded model on `devices`, or None.

    Raises BundleError if there are fewer devices than the mesh has.
    """
    if manifest.mesh is None:
        return None
    count = math.prod(manifest.mesh.axis_sizes)
    if len(devices) < count:
        raise BundleError(
            f"the bundle was exported for {count} devices, got {len(devices)}; load it on "
            "a host that has them, or export it unsharded"
        )
    grid = np.array(devices[:count]).reshape(manifest.mesh.axis_sizes)
    return Mesh(grid, manifest.mesh.axis_names)


def shardings(
    manifest: Manifest, mesh: Mesh | None, device: Any
) -> tuple[dict[str, Sharding], Sharding]:
    """Returns the sharding of each weight, and the one of all inputs and outputs.

    Args:
        manifest: Of the bundle, with the weights' mesh axes.
        mesh: Devices of a sharded model, or None.
        device: Device of a model without mesh.
    """
    if mesh is None:
        single = SingleDeviceSharding(device)
        return dict.fromkeys(manifest.weights, single), single
    placed: dict[str, Sharding] = {}
    for name, entry in manifest.weights.items():
        spec = PartitionSpec(*(axes or None for axes in entry.spec or ()))
        placed[name] = NamedSharding(mesh, spec)
    return placed, NamedSharding(mesh, PartitionSpec())


def formats(placed: Mapping[str, Sharding], platform: Platform) -> dict[str, Sharding | Format]:
    """Returns the shardings, with the platform's layouts if it has any."""
    result: dict[str, Sharding | Format] = dict(placed)
    for name, order in platform.layouts.items():
        result[name] = Format(Layout(major_to_minor=tuple(order)), placed[name])
    return result


def share_keys(
    manifest: Manifest, formats: Mapping[str, Sharding | Format], platform: Platform
) -> dict[str, ShareKey]:
    """Returns the keys for sharing loaded weights between models.

    Args:
        manifest: Of the bundle, with the weights' digests.
        formats: Placement of each weight.
        platform: The platform, with the dtype of its weights.
    """
    return {
        name: (
            entry.sha256,
            entry.dtype,
            entry.shape,
            jax.numpy.dtype(converted(entry.dtype, platform.weights)).name,
            formats[name],
        )
        for name, entry in manifest.weights.items()
    }


def load_weights(
    folder: Folder,
    formats: Mapping[str, Sharding | Format],
    platform: Platform,
    *,
    taken: Mapping[str, jax.Array],
    verify: bool,
    memory: WeightMemory | None,
) -> dict[str, jax.Array]:
    """Verifies a bundle and puts its weights on their devices, in the platform's dtype.

    Args:
        folder: The bundle.
        formats: Placement of each weight.
        platform: The platform, with the dtype of its weights.
        taken: Arrays of other models, in place of weights.
        verify: Compare every byte of the bundle with its digest: weights after they were read.
        memory: Counts the bytes that stay in host memory; None to map the weights.

    Returns:
        Arrays on the devices, by name. The transfers have ended.

    Raises:
        IntegrityError: A byte differs.
        MemoryExceeded: The weights do not fit in memory.
    """
    sizes = {
        name: place.stop - place.start
        for name, place in folder.places(WEIGHTS).items()
        if name not in taken
    }
    held = sum(sizes.values()) if memory and platform.name == "cpu" else 0
    if memory:
        memory.reserve(held)
    try:
        if verify:
            verify_folder(folder, without=sizes if memory else ())
        options: dict[str, bool] = {"mapped": not memory, "verify": verify and memory is not None}
        placed = {}
        for names in _groups(sizes):
            for name, array in folder.arrays(WEIGHTS, names, **options).items():
                values = array.astype(converted(array.dtype, platform.weights), copy=False)
                placed[name] = _put(values, formats[name])
            jax.block_until_ready(placed)
    except BaseException:
        if memory:
            memory.release(held)
        raise
    if memory and held:
        memory.release_with((placed[name], size) for name, size in sizes.items())
    return {
        name: taken[name] if name in taken else placed[name] for name in folder.manifest.weights
    }


def _groups(sizes: Mapping[str, int]) -> Iterator[list[str]]:
    """Yields names of arrays that have up to `_GROUP_BYTES` together, or of one that has more."""
    names, total = [], 0
    for name, size in sizes.items():
        if names and total + size > _GROUP_BYTES:
            yield names
            names, total = [], 0
        names.append(name)
        total += size
    if names:
        yield names


def _put(values: np.ndarray, place: Sharding | Format) -> jax.Array:
    """Puts an array on its devices.

    jax 0.10.2 refuses arrays of 4 bits that were put on a device by name, since the array and the
    executable tell different layouts. It takes those that are on the default device, as 0.12 does.
    """
    if isinstance(place, SingleDeviceSharding) and values.dtype.name in SUB_BYTE:
        with jax.default_device(next(iter(place.device_set))):
            return jax.device_put(values)
    return jax.device_put(values, place)


def unconverted(
    weights: Mapping[str, jax.Array], entries: Mapping[str, ArrayEntry]
) -> dict[str, jax.Array]:
    """Returns the weights with the dtype of their file. On a CPU they may be its map."""
    return {
        name: array for name, array in weights.items() if array.dtype.name == entries[name].dtype
    }


def verify_weights(weights: Mapping[str, jax.Array], entries: Mapping[str, ArrayEntry]) -> int:
    """Compares weights on devices with their digests.

    Args:
        weights: Arrays on their devices: all of a bundle, or some.
        entries: Their entries in the manifest.

    Returns:
        The number of arrays.

    Raises:
        BundleError: They were converted to another dtype when they were loaded.
        IntegrityError: An array differs. The message names it.
    """
    for name in sorted(weights.keys() - unconverted(weights, entries).keys()):
        raise BundleError(
            f"weights can be compared if they have the dtype of their file, got {name!r} of "
            f"{weights[name].dtype.name}, stored as {entries[name].dtype}; a platform with "
            "weights=None does not convert them, and verify(path) compares the file"
        )
    digests = on_all_cores(lambda name: array_digest(stored(weights[name])), weights)
    for name, computed in zip(weights, digests, strict=True):
        if computed != entries[name].sha256:
            raise IntegrityError(
                f"the array {name!r} in memory must have its digest, {entries[name].sha256[:12]}, "
                f"got {computed[:12]}; load the model again, and test the memory of this machine "
                "if its file is intact",
                file=WEIGHTS,
                array=name,
            )
    return len(weights)
