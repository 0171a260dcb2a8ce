# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Shardings of weights over the devices of this process."""

import contextlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from dovetail_serve.bundle.arrays import SUB_BYTE
from dovetail_serve.context import without_mesh


def mesh_of(weights: Mapping[str, Any]) -> jax.sharding.Mesh | None:
    """Returns the mesh of sharded weights; None if every weight is on one device.

    Raises ValueError if weights are on two meshes.
    """
    mesh, first = None, ""
    for name, array in weights.items():
        sharding = getattr(array, "sharding", None)
        if not isinstance(sharding, NamedSharding) or sharding.mesh.size == 1:
            continue
        if mesh is not None and sharding.mesh != mesh:
            raise ValueError(
                f"all sharded weights must be on one mesh, got {first!r} on {mesh} and {name!r} on "
                f"{sharding.mesh}; put them on one mesh with jax.device_put"
            )
        mesh, first = sharding.mesh, name
    return mesh  # type: ignore[return-value]


def replicated(mesh: jax.sharding.Mesh | None) -> NamedSharding | None:
    """Returns the sharding of inputs and outputs: every device holds all; None without a mesh."""
    return None if mesh is None else NamedSharding(mesh, PartitionSpec())


def on_mesh(array: Any, mesh: jax.sharding.Mesh | None) -> NamedSharding | None:
    """Returns the sharding of a weight on the mesh: replicated unless it has one."""
    sharding = getattr(array, "sharding", None)
    if mesh is not None and isinstance(sharding, NamedSharding) and sharding.mesh == mesh:
        return sharding
    return replicated(mesh)


def context_of(weights: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Returns the context of an export: the caller's for sharded weights, else one without mesh."""
    return without_mesh() if mesh_of(weights) is None else contextlib.nullcontext()


def check_devices(devices: int, mesh: jax.sharding.Mesh | None) -> None:
    """Raises ValueError unless a program is for as many devices as its weights are on.

    Args:
        devices: Number of devices of the program.
        mesh: Mesh of the weights; None for one device.
    """
    count = 1 if mesh is None else mesh.size
    if devices != count:
        raise ValueError(
            f"fn must compute on the devices of params, got a program for {devices} devices and "
            f"params on {count}; put params on the mesh that fn names: "
            "jax.device_put(params, NamedSharding(mesh, PartitionSpec()))"
        )


def check_packed(
    weights: Mapping[str, Any], mesh: jax.sharding.Mesh | None, *, platform: str
) -> None:
    """Raises ValueError for weights of 4 bits on a mesh where JAX cannot run them.

    jax 0.10.2 refuses its own executable on CPUs: it and the arrays tell different layouts. Its
    `jax.jit` makes no such comparison. Versions 0.11.2 and 0.12 run them.

    Args:
        weights: Arrays by name.
        mesh: Their mesh; None for one device.
        platform: Name of the platform.
    """
    if mesh is None or platform != "cpu" or jax.__version_info__ >= (0, 11):
        return
    for name, array in weights.items():
        if array.dtype.name in SUB_BYTE:
            raise ValueError(
                f"weights of 4 bits must be on one CPU device in jax {jax.__version__}, got "
                f"{name!r} of {array.dtype.name} for a mesh of {mesh.size}; put params on one "
                "device, store it as int8, or install jax 0.11 or newer"
            )


def specs_of(weights: Mapping[str, Any]) -> dict[str, tuple[tuple[str, ...], ...]]:
    """Returns the mesh axes of each axis of the sharded weights, by name."""
    specs: dict[str, tuple[tuple[str, ...], ...]] = {}
    if mesh_of(weights) is None:
        return specs
    for name, array in weights.items():
        sharding = getattr(array, "sharding", None)
        if isinstance(sharding, NamedSharding) and any(sharding.spec):
            axes = [*sharding.spec, *[None] * (array.ndim - len(sharding.spec))]
            specs[name] = tuple(
                () if axis is None else (axis,) if isinstance(axis, str) else tuple(axis)
                for axis in axes
            )
    return specs
