# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Kinds of devices: rates, memories, links and shapes, from the makers' data sheets.

An entry has JAX's `device_kind`, since that is the name a running program sees, and describes one
device as JAX counts them: a chip, or half of a chip of TPU7x. Figures are dense: data sheets of
NVIDIA and AMD double most of theirs for sparsity. A figure in doubt is left out.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

Platform = Literal["cpu", "cuda", "rocm", "tpu"]
_CLOUD_TPU = "Cloud TPU documentation, system architecture, per chip"
_PLANES = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_BLOCKS = ("2x2x1", "2x2x2", "2x2x4", "2x4x4")  # above these, sizes are multiples of 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceKind:
    """One kind of device.

    Attributes:
        name: JAX's `device_kind`.
        names: Usual names. Case, spaces and hyphens do not matter.
        platform: Platform for which JAX lowers programs.
        peak_flops: FLOP/s of dense products by dtype. float32 products of JAX on NVIDIA's devices
            run as TF32 unless a higher precision is asked for; Google publishes no float32 figures.
        memory_bytes: Bytes of memory. GB of data sheets are 1e9 bytes, except GiB for Cloud TPU.
            None: not known.
        memory_bytes_per_s: Bandwidth of the memory. None: not known.
        link_bytes_per_s: Bytes per second that a device sends over all links to its slice or host
            at once, in one direction: half of the published rates. None: not known.
        joined: Number of GPUs that fast links join: those of a host, or of a rack of GB200.
        slices: Shapes of TPU slices on offer, in chips. Three sizes may also be ascending multiples
            of 4 up to `largest`.
        largest: Largest shape of a TPU slice with three sizes.
        cores: Devices of a TPU chip.
        topology: Name of a TPU in topologies of libtpu.
        source: Origin of the figures.
    """

    name: str
    names: tuple[str, ...] = ()
    platform: Platform
    peak_flops: Mapping[str, float] = dataclasses.field(default_factory=dict)
    memory_bytes: int | None = None
    memory_bytes_per_s: float | None = None
    link_bytes_per_s: float | None = None
    joined: int = 8
    slices: tuple[str, ...] = ()
    largest: tuple[int, ...] = ()
    cores: int = 1
    topology: str = ""
    source: str = ""

    def has_slice(self, chips: tuple[int, ...]) -> bool:
        """Tests whether TPU slices of this shape are on offer."""
        if "x".join(map(str, chips)) in self.slices:
            return True
        ascending = list(chips) == sorted(chips) and not any(n < 4 or n % 4 for n in chips)
        within = len(chips) == len(self.largest) and all(map(int.__le__, chips, self.largest))
        return ascending and within


def _gpu(
    name: str,
    *names: str,
    gb: int,
    gb_per_s: int,
    peak: tuple[float, float],
    links: int | None,
    sheet: str,
    joined: int = 8,
) -> DeviceKind:
    """Returns a GPU. `peak` has TFLOP/s in bfloat16 and float32, `links` GB/s."""
    maker = "NVIDIA" if name.startswith("NVIDIA") else "AMD"
    return DeviceKind(
        name=name,
        names=names,
        platform="cuda" if maker == "NVIDIA" else "rocm",
        peak_flops={"bfloat16": peak[0] * 1e12, "float32": peak[1] * 1e12},
        memory_bytes=gb * 10**9,
        memory_bytes_per_s=gb_per_s * 1e9,
        link_bytes_per_s=None if links is None else links * 1e9,
        joined=joined,
        source=f"{maker} {sheet} data sheet",
    )


def _tpu(
    name: str, *names: str, gib: int, gb_per_s: int, tflops: float, links: int, **shape: Any
) -> DeviceKind:
    return DeviceKind(
        name=name,
        names=names,
        platform="tpu",
        peak_flops={"bfloat16": tflops * 1e12},
        memory_bytes=gib * 2**30,
        memory_bytes_per_s=gb_per_s * 1e9,
        link_bytes_per_s=links * 1e9,
        source=_CLOUD_TPU if shape.get("cores", 1) == 1 else f"{_CLOUD_TPU}, halved",
        **shape,
    )


_A100, _HOPPER, _MI300 = (312.0, 156.0), (989.4, 494.7), (1307.4, 163.4)

#: All kinds with known figures.
KINDS: tuple[DeviceKind, ...] = (
    _gpu(
        "NVIDIA A100-SXM4-40GB", "A100-40GB", "A100-SXM-40GB",
        gb=40, gb_per_s=1555, peak=_A100, links=300, sheet="A100",
    ),
    _gpu(
        "NVIDIA A100-SXM4-80GB", "A100-80GB", "A100-SXM-80GB",
        gb=80, gb_per_s=2039, peak=_A100, links=300, sheet="A100",
    ),
    _gpu("NVIDIA A100-PCIE-40GB", gb=40, gb_per_s=1555, peak=_A100, links=None, sheet="A100"),
    _gpu(
        "NVIDIA A100 80GB PCIe", "A100-PCIE-80GB",
        gb=80, gb_per_s=1935, peak=_A100, links=None, sheet="A100",
    ),
    _gpu(
        "NVIDIA H100 80GB HBM3", "H100", "H100-SXM", "H100-80GB",
        gb=80, gb_per_s=3350, peak=_HOPPER, links=450, sheet="H100",
    ),
    _gpu(
        "NVIDIA H100 PCIe",
        gb=80, gb_per_s=2000, peak=(756.0, 378.0), links=None, sheet="H100",
    ),
    _gpu(
        "NVIDIA H200", "H200-SXM",
        gb=141, gb_per_s=4800, peak=_HOPPER, links=450, sheet="H200",
    ),
    _gpu("NVIDIA L4", gb=24, gb_per_s=300, peak=(121.0, 60.0), links=None, sheet="L4"),
    _gpu("NVIDIA L40S", gb=48, gb_per_s=864, peak=(362.0, 183.0), links=None, sheet="L40S"),
    _gpu(
        "NVIDIA B200", "B200-SXM",
        gb=180, gb_per_s=8000, peak=(2250.0, 1125.0), links=900, sheet="DGX B200",
    ),
    _gpu(
        "NVIDIA GB200", "GB200-NVL72",
        gb=186, gb_per_s=8000, peak=(2500.0, 1250.0), links=900, sheet="GB200 NVL72", joined=72,
    ),
    _gpu(
        "AMD Instinct MI300X", "MI300X", "MI300",
        gb=192, gb_per_s=5300, peak=_MI300, links=448, sheet="MI300X",
    ),
    _gpu(
        "AMD Instinct MI325X", "MI325X",
        gb=256, gb_per_s=6000, peak=_MI300, links=448, sheet="MI325X",
    ),
    _tpu(
        "TPU v4", "v4",
        gib=32, gb_per_s=1228, tflops=275.0, links=300,
        topology="v4", slices=_BLOCKS, largest=(16, 16, 16),
    ),
    _tpu(
        "TPU v5 lite", "TPU v5e", "v5e",
        gib=16, gb_per_s=819, tflops=197.0, links=200, topology="v5e", slices=_PLANES,
    ),
    _tpu(
        "TPU v5", "TPU v5p", "v5p",
        gib=95, gb_per_s=2765, tflops=459.0, links=600,
        topology="v5p", slices=("1x1x1", *_BLOCKS), largest=(16, 16, 24),
    ),
    _tpu(
        "TPU v6 lite", "TPU v6e", "v6e", "trillium",
        gib=32, gb_per_s=1640, tflops=918.0, links=400, topology="v6e", slices=_PLANES,
    ),
    _tpu(
        "TPU7x", "TPU v7x", "v7x", "ironwood",
        gib=96, gb_per_s=3690, tflops=1153.5, links=300, cores=2,
        topology="tpu7x", slices=("1x1x1", *_BLOCKS), largest=(16, 24, 24),
    ),
)  # fmt: skip


def key_of(name: str) -> str:
    """Returns a name without case, spaces, hyphens and the maker."""
    letters = "".join(c for c in name.casefold() if c not in " -_")
    return letters.removeprefix("nvidia").removeprefix("amd").removeprefix("instinct")


BY_KEY = {key_of(name): kind for kind in KINDS for name in (kind.name, *kind.names)}
