# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Targets: devices to compile for, present or not.

`Devices` is a description, so it pickles and needs no backend. The worker turns it into devices of
JAX: a topology of libtpu, one of XLA's GPU compiler with the figures below, or the host's CPU taken
as several devices. Figures are from the makers' data sheets, dense and per device.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from typing import Literal

Platform = Literal["tpu", "gpu", "cpu"]
#: GPUs of one host, which NVLink joins. Hosts exchange data over their network.
HOST_GPUS = 8
_FORM = re.compile(r"(?P<kind>.*?)(?::(?P<chips>\d+(?:x\d+)*))?(?:\s+[x×]\s*(?P<times>\d+))?")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of device.

    Attributes:
        name: Its name in messages.
        platform: Platform of JAX.
        names: Other names. Case, spaces and hyphens do not matter.
        topology: Name of the kind in a topology of libtpu.
        dimensions: Dimensions of a TPU slice.
        memory_bytes: Bytes of memory, None for a CPU.
        peak_flops: FLOP/s of bfloat16 products.
        link_bytes_per_s: Bytes per second from one device to its slice or host, in total.
        config: XLA's description of a GPU, for its fusions, tiles and launches.
    """

    name: str
    platform: Platform
    names: tuple[str, ...] = ()
    topology: str = ""
    dimensions: int = 0
    memory_bytes: int | None = None
    peak_flops: float | None = None
    link_bytes_per_s: float | None = None
    config: str = ""


def _tpu(version: str, dimensions: int, gib: int, tflops: float, gb_per_s: float) -> Kind:
    return Kind(
        name=f"TPU {version}",
        platform="tpu",
        names=(version,),
        topology=version,
        dimensions=dimensions,
        memory_bytes=gib * 2**30,
        peak_flops=tflops * 1e12,
        link_bytes_per_s=gb_per_s * 1e9,
    )


def _nvidia(name: str, *names: str, gb: int, tflops: float, gb_per_s: float, config: str) -> Kind:
    fields = f"device_memory_size: {gb * 10**9} {config}"
    return Kind(
        name=f"NVIDIA {name}",
        platform="gpu",
        names=(name, *names),
        memory_bytes=gb * 10**9,
        peak_flops=tflops * 1e12,
        link_bytes_per_s=gb_per_s * 1e9,
        config=f"gpu_device_info {{ {fields} {_CUDA} }} "
        f'platform_name: "CUDA" device_description_str: "NVIDIA {name}"',
    )


# Equal for all NVIDIA devices since Pascal (CUDA C++ Programming Guide, compute capabilities).
_CUDA = (
    "threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048 "
    "block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535 "
    "shared_memory_per_block: 49152 "
    "registers_per_core_limit: 65536 registers_per_block_limit: 65536"
)
_AMPERE = (
    "core_count: 108 fpus_per_core: 64 clock_rate_ghz: 1.41 l2_cache_size: 41943040 "
    "shared_memory_per_core: 167936 shared_memory_per_block_optin: 166912 "
    "cuda_compute_capability { major: 8 }"
)
_HOPPER = (
    "core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98 "
    "shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448 "
    "cuda_compute_capability { major: 9 }"
)

#: Links are half of the published rates, which add up both directions.
KINDS: tuple[Kind, ...] = (
    _tpu("v4", 3, gib=32, tflops=275.0, gb_per_s=150.0),
    _tpu("v5e", 2, gib=16, tflops=197.0, gb_per_s=100.0),
    _tpu("v5p", 3, gib=95, tflops=459.0, gb_per_s=300.0),
    _tpu("v6e", 2, gib=32, tflops=918.0, gb_per_s=200.0),
    _nvidia(
        "A100-SXM4-40GB", "A100-40GB", gb=40, tflops=312.0, gb_per_s=300.0,
        config=f"memory_bandwidth: 1555000000000 {_AMPERE}",
    ),
    _nvidia(
        "A100-SXM4-80GB", "A100-80GB", "A100", gb=80, tflops=312.0, gb_per_s=300.0,
        config=f"memory_bandwidth: 2039000000000 {_AMPERE}",
    ),
    _nvidia(
        "H100 80GB HBM3", "H100", "H100-SXM", gb=80, tflops=989.4, gb_per_s=450.0,
        config=f"memory_bandwidth: 3350000000000 l2_cache_size: 52428800 {_HOPPER}",
    ),
    _nvidia(
        "H200", "H200-SXM", gb=141, tflops=989.4, gb_per_s=450.0,
        config=f"memory_bandwidth: 4800000000000 l2_cache_size: 62914560 {_HOPPER}",
    ),
    Kind(name="CPU", platform="cpu"),
)  # fmt: skip


def _key(name: str) -> str:
    """Returns a name without case, spaces, hyphens and "nvidia"."""
    letters = "".join(c for c in name.casefold() if c not in " -_")
    return letters.removeprefix("nvidia")


_BY_KEY = {_key(name): kind for kind in KINDS for name in (kind.name, *kind.names)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Devices:
    """Devices to compile for. Make one with `devices`.

    Attributes:
        kind: Kind of the devices.
        chips: Sizes of a TPU slice, or the number of GPUs or CPU devices.
        slices: Number of TPU slices, joined by the data center's network.
    """

    kind: Kind
    chips: tuple[int, ...]
    slices: int = 1

    @property
    def count(self) -> int:
        """Number of devices."""
        return math.prod(self.chips) * self.slices

    @property
    def memory_bytes(self) -> int | None:
        """Memory of one device, None for a CPU."""
        return self.kind.memory_bytes

    def __str__(self) -> str:
        if self.kind.platform != "tpu":
            return f"{self.kind.name} x {self.count}"
        slices = f" x {self.slices}" if self.slices > 1 else ""
        return f"{self.kind.name}:{'x'.join(map(str, self.chips))}{slices}"

    def __repr__(self) -> str:
        return f"devices({str(self)!r})"


def devices(name: str, *, count: int | None = None, slices: int = 1) -> Devices:
    """Returns a target for `compiled`. The devices need not exist.

    Args:
        name: Kind of device. A TPU has the sizes of its slice, "TPU v5e:16x16", and
            "TPU v5e:16x16 x 2" means two slices. "NVIDIA H200 x 8" and "CPU x 8" have a number of
            devices. Case, spaces and hyphens of the kind do not matter.
        count: Number of GPUs or CPU devices, in the place of "x 8". Default: 1. Eight GPUs are one
            host; more must be whole hosts.
        slices: Number of TPU slices, in the place of "x 2".

    Raises:
        ValueError: The kind is unknown, or it has no such devices.

    Example:

        >>> devices("TPU v5e:16x16", slices=2).count
        512
        >>> devices("NVIDIA H200 x 8")
        devices('NVIDIA H200 x 8')
    """
    form = _FORM.fullmatch(name.strip())
    assert form is not None  # each part is optional
    kind = _kind(form["kind"], name)
    chips = tuple(map(int, form["chips"].split("x"))) if form["chips"] else ()
    times = int(form["times"]) if form["times"] else None
    if kind.platform == "tpu":
        return _slices(kind, chips, times, name=name, count=count, slices=slices)
    if chips or slices != 1 or (times and count):
        raise ValueError(
            f"GPUs and CPUs have one number of devices and no slices, got {name!r}, count={count}, "
            f"slices={slices}; write devices('{kind.name} x 8')"
        )
    number = 1 if times is None and count is None else times or count or 0
    whole = kind.platform == "cpu" or number <= HOST_GPUS or number % HOST_GPUS == 0
    if number < 1 or not whole:
        hosts = max(1, round(number / HOST_GPUS))
        raise ValueError(
            f"a number of devices is at least 1, and of GPUs a multiple of the {HOST_GPUS} of a "
            f"host above one host, got {number}; write devices('{kind.name} x {hosts * HOST_GPUS}')"
        )
    return Devices(kind=kind, chips=(number,))


def _slices(
    kind: Kind, chips: tuple[int, ...], times: int | None, *, name: str, count: int | None,
    slices: int,
) -> Devices:  # fmt: skip
    shape = "x".join(["4"] * kind.dimensions)
    if count is not None or len(chips) != kind.dimensions or 0 in chips:
        given = "" if count is None else f" with count={count}"
        raise ValueError(
            f"a {kind.name} target has the {kind.dimensions} sizes of its slice, got {name!r}"
            f"{given}; write devices('{kind.name}:{shape}')"
        )
    if (times is not None and slices != 1) or (times or slices) < 1 or times == 0:
        raise ValueError(
            f"the number of slices is at least 1 and said once, got {name!r} with slices={slices}; "
            f"write devices('{kind.name}:{shape} x 2')"
        )
    return Devices(kind=kind, chips=chips, slices=times or slices)


def _kind(text: str, name: str) -> Kind:
    key = _key(text)
    if kind := _BY_KEY.get(key):
        return kind
    near = difflib.get_close_matches(key, _BY_KEY, n=3, cutoff=0.5)
    names = dict.fromkeys(_BY_KEY[k].name for k in near) or [kind.name for kind in KINDS]
    raise ValueError(
        f"a target names a known kind of device, got {name!r}; write one of "
        f"{', '.join(map(repr, names))}"
    )
