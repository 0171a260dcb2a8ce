# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Kinds of devices by name, and meshes of devices that may be absent."""

import dataclasses
import difflib
import math
from typing import Any, cast

import jax
from jax.sharding import AbstractDevice, AbstractMesh, Mesh

from dovetail_train._device_kinds import BY_KEY, KINDS, DeviceKind, Platform, key_of

_EXACT = {kind.name: kind for kind in KINDS}


def peak_flops(device_kind: str, dtype: str) -> float | None:
    """Returns FLOP/s of one device, or None if the table lacks this exact kind and dtype."""
    kind = _EXACT.get(device_kind)
    return None if kind is None else kind.peak_flops.get(dtype)


def kind_of(device: str) -> DeviceKind:
    """Returns the kind of device with this name.

    A kind of this machine's own devices has figures only if `KINDS` lists it.

    Args:
        device: JAX's `device_kind` or a usual name, such as "H200" or "v5e". Case, spaces and
            hyphens do not matter.

    Raises:
        TypeError: `device` is not a string.
        ValueError: The name is unknown, or several kinds have it.
    """
    if not isinstance(device, str):
        raise TypeError(
            f"device must be the name of a kind of device, got device={device!r}; write for "
            f'example device="H200"'
        )
    if kind := BY_KEY.get(key_of(device)):
        return kind
    own = {key_of(name): kind for name, kind in _own_kinds().items()}
    if kind := own.get(key_of(device)):
        return kind
    raise ValueError(
        f"device must name one kind of device with known figures, or one of this machine, got "
        f"device={device!r}; write {_instead(device)}"
    )


def with_rates(
    kind: DeviceKind, *, compute: str, peak_flops: float | None, memory_bytes_per_s: float | None
) -> DeviceKind:
    """Returns the kind with given rates in the place of published ones.

    Args:
        kind: The kind.
        compute: Dtype of the products.
        peak_flops: FLOP/s in that dtype, or None for the published figure.
        memory_bytes_per_s: Bandwidth of the memory, or None for the published figure.

    Raises:
        ValueError: A rate is not a positive finite number.
    """
    for name, rate in (("peak_flops", peak_flops), ("memory_bytes_per_s", memory_bytes_per_s)):
        check_rate(name, rate)
    peaks = {} if peak_flops is None else {compute: float(peak_flops)}
    rate = kind.memory_bytes_per_s if memory_bytes_per_s is None else float(memory_bytes_per_s)
    return dataclasses.replace(
        kind, peak_flops={**kind.peak_flops, **peaks}, memory_bytes_per_s=rate
    )


def check_rate(name: str, rate: float | None) -> None:
    """Raises ValueError for a rate that is given, and not positive and finite."""
    if rate is not None and not 0 < rate < math.inf:
        raise ValueError(
            f"{name} must be a positive number per second, got {name}={rate}; write for example "
            f"{name}=1e12, or leave it out"
        )


def _own_kinds() -> dict[str, DeviceKind]:
    """Returns the kinds of this process's devices, and its CPU's."""
    platforms = {"cpu": "cpu"} | {d.device_kind: d.platform for d in jax.devices()}
    return {
        name: DeviceKind(name=name, platform=_lowering_platform(platform, name))
        for name, platform in platforms.items()
    }


def _lowering_platform(platform: str, kind: str) -> Platform:
    if platform == "gpu":  # as a device names it
        return "cuda" if "NVIDIA" in kind else "rocm"
    return cast(Platform, platform)


def _instead(device: str) -> str:
    """Returns near names of `KINDS`, or all of them."""
    key = key_of(device)
    several = [kind.name for kind in KINDS if key and key_of(kind.name).startswith(key)]
    keys = difflib.get_close_matches(key, BY_KEY, n=3, cutoff=0.6)
    near = several or list(dict.fromkeys(BY_KEY[k].name for k in keys))
    return f"one of {', '.join(map(repr, near or _EXACT))}"


def absent_twin(mesh: Mesh | AbstractMesh, kind: DeviceKind) -> AbstractMesh:
    """Returns the mesh with devices of `kind`, which may be absent.

    Operations with a kernel for each kind of device read it from the mesh in scope.
    """
    return AbstractMesh(
        mesh.axis_sizes,
        mesh.axis_names,
        axis_types=mesh.axis_types,
        abstract_device=AbstractDevice(
            device_kind=kind.name, num_cores=None, platform=kind.platform
        ),
    )


def slice_of(device: Any) -> int:
    """Returns the slice of a device: 0 for a kind of device without slices.

    JAX may number the hosts of GPUs as slices. They count as processes, and only if `dcn` is given:
    fsdp over hosts is usual there, and the links between them may be fast.
    """
    return 0 if device.platform == "gpu" else getattr(device, "slice_index", 0)
