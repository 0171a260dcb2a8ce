# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Kinds of devices: peak rates and memories from the makers' data sheets.

An entry has JAX's `device_kind`, since that is the name a running program sees. Figures are dense:
data sheets of NVIDIA double most of theirs for sparsity. A kind with figures in doubt is left out.
"""

import dataclasses
import difflib
import math
from collections.abc import Mapping
from typing import Any, Literal, cast

import jax
from jax.sharding import AbstractDevice, AbstractMesh, Mesh

Platform = Literal["cpu", "cuda", "rocm", "tpu"]
_A100 = {"bfloat16": 312e12, "float32": 156e12}
_HOPPER = {"bfloat16": 989.4e12, "float32": 494.7e12}
_CLOUD_TPU = "Cloud TPU documentation, system architecture, per chip"


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceKind:
    """One kind of device.

    Attributes:
        name: JAX's `device_kind`.
        names: Usual names. Case, spaces and hyphens do not matter.
        platform: As in `Program.lower`.
        peak_flops: FLOP/s of dense products by dtype. float32 products of JAX on NVIDIA's devices
            run as TF32 unless a higher precision is asked for; Google publishes no float32 figures.
        memory_bytes: Bytes of memory. GB of data sheets are 1e9 bytes, except GiB for Cloud TPU.
            None: not known.
        memory_bytes_per_s: Bandwidth of the memory. None: not known.
        source: Origin of the figures.
    """

    name: str
    names: tuple[str, ...] = ()
    platform: Platform
    peak_flops: Mapping[str, float] = dataclasses.field(default_factory=dict)
    memory_bytes: int | None = None
    memory_bytes_per_s: float | None = None
    source: str = ""


def _nvidia(name: str, *names: str, gb: int, gb_per_s: int, peak: Any, sheet: str) -> DeviceKind:
    return DeviceKind(
        name=name,
        names=names,
        platform="cuda",
        peak_flops=peak,
        memory_bytes=gb * 10**9,
        memory_bytes_per_s=gb_per_s * 1e9,
        source=f"NVIDIA {sheet} data sheet",
    )


def _tpu(name: str, *names: str, gib: int, gb_per_s: int, bfloat16: float) -> DeviceKind:
    return DeviceKind(
        name=name,
        names=names,
        platform="tpu",
        peak_flops={"bfloat16": bfloat16},
        memory_bytes=gib * 2**30,
        memory_bytes_per_s=gb_per_s * 1e9,
        source=_CLOUD_TPU,
    )


#: All kinds with known figures.
KINDS: tuple[DeviceKind, ...] = (
    _nvidia(
        "NVIDIA A100-SXM4-40GB", "A100-40GB", "A100-SXM-40GB",
        gb=40, gb_per_s=1555, peak=_A100, sheet="A100",
    ),
    _nvidia(
        "NVIDIA A100-SXM4-80GB", "A100-80GB", "A100-SXM-80GB",
        gb=80, gb_per_s=2039, peak=_A100, sheet="A100",
    ),
    _nvidia("NVIDIA A100-PCIE-40GB", gb=40, gb_per_s=1555, peak=_A100, sheet="A100"),
    _nvidia(
        "NVIDIA A100 80GB PCIe", "A100-PCIE-80GB",
        gb=80, gb_per_s=1935, peak=_A100, sheet="A100",
    ),
    _nvidia(
        "NVIDIA H100 80GB HBM3", "H100", "H100-SXM", "H100-80GB",
        gb=80, gb_per_s=3350, peak=_HOPPER, sheet="H100",
    ),
    _nvidia(
        "NVIDIA H100 PCIe",
        gb=80, gb_per_s=2000, peak={"bfloat16": 756e12, "float32": 378e12}, sheet="H100",
    ),
    _nvidia("NVIDIA H200", "H200-SXM", gb=141, gb_per_s=4800, peak=_HOPPER, sheet="H200"),
    _nvidia(
        "NVIDIA L4",
        gb=24, gb_per_s=300, peak={"bfloat16": 121e12, "float32": 60e12}, sheet="L4",
    ),
    _nvidia(
        "NVIDIA L40S",
        gb=48, gb_per_s=864, peak={"bfloat16": 362e12, "float32": 183e12}, sheet="L40S",
    ),
    _nvidia("NVIDIA B200", gb=180, gb_per_s=8000, peak={"bfloat16": 2250e12}, sheet="DGX B200"),
    _tpu("TPU v4", "v4", gib=32, gb_per_s=1228, bfloat16=275e12),
    _tpu("TPU v5 lite", "v5e", "TPU v5e", gib=16, gb_per_s=819, bfloat16=197e12),
    _tpu("TPU v5", "v5p", "TPU v5p", gib=95, gb_per_s=2765, bfloat16=459e12),
    _tpu("TPU v6 lite", "v6e", "TPU v6e", "trillium", gib=32, gb_per_s=1640, bfloat16=918e12),
)  # fmt: skip
_EXACT = {kind.name: kind for kind in KINDS}


def _key(name: str) -> str:
    """Returns a name without case, spaces, hyphens and the maker."""
    letters = "".join(c for c in name.casefold() if c not in " -_")
    return letters.removeprefix("nvidia")


_BY_KEY = {_key(name): kind for kind in KINDS for name in (kind.name, *kind.names)}


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
    if kind := _BY_KEY.get(_key(device)):
        return kind
    own = {_key(name): kind for name, kind in _own_kinds().items()}
    if kind := own.get(_key(device)):
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
    key = _key(device)
    several = [kind.name for kind in KINDS if key and _key(kind.name).startswith(key)]
    keys = difflib.get_close_matches(key, _BY_KEY, n=3, cutoff=0.6)
    near = several or list(dict.fromkeys(_BY_KEY[k].name for k in keys))
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
