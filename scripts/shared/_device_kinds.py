# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Kinds of devices: rates, memories and links, from the makers' data sheets.

An entry has JAX's `device_kind`, since that is the name a running program sees, and describes one
device as JAX counts them: a chip, or half of a chip of TPU7x. Figures are dense: data sheets of
NVIDIA and AMD double most of theirs for sparsity. A figure in doubt is left out.
"""

import dataclasses
from collections.abc import Mapping
from typing import Literal

Platform = Literal["cpu", "cuda", "rocm", "tpu"]


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
        source: Origin of the figures.
    """

    name: str
    names: tuple[str, ...] = ()
    platform: Platform
    peak_flops: Mapping[str, float] = dataclasses.field(default_factory=dict)
    memory_bytes: int | None = None
    memory_bytes_per_s: float | None = None
    link_bytes_per_s: float | None = None
    source: str = ""


_CLOUD_TPU = "Cloud TPU documentation, system architecture, per chip"
# Name, usual names, TFLOP/s in bfloat16 and float32, GB, GB/s, GB/s of links, data sheet.
_TABLE = (
    ("NVIDIA A100-SXM4-40GB", "A100-40GB|A100-SXM-40GB", 312.0, 156.0, 40, 1555, 300, "A100"),
    ("NVIDIA A100-SXM4-80GB", "A100-80GB|A100-SXM-80GB", 312.0, 156.0, 80, 2039, 300, "A100"),
    ("NVIDIA A100-PCIE-40GB", "", 312.0, 156.0, 40, 1555, None, "A100"),
    ("NVIDIA A100 80GB PCIe", "A100-PCIE-80GB", 312.0, 156.0, 80, 1935, None, "A100"),
    ("NVIDIA H100 80GB HBM3", "H100|H100-SXM|H100-80GB", 989.4, 494.7, 80, 3350, 450, "H100"),
    ("NVIDIA H100 PCIe", "", 756.0, 378.0, 80, 2000, None, "H100"),
    ("NVIDIA H200", "H200-SXM", 989.4, 494.7, 141, 4800, 450, "H200"),
    ("NVIDIA L4", "", 121.0, 60.0, 24, 300, None, "L4"),
    ("NVIDIA L40S", "", 362.0, 183.0, 48, 864, None, "L40S"),
    ("NVIDIA B200", "B200-SXM", 2250.0, 1125.0, 180, 8000, 900, "DGX B200"),
    ("NVIDIA GB200", "GB200-NVL72", 2500.0, 1250.0, 186, 8000, 900, "GB200 NVL72"),
    ("AMD Instinct MI300X", "MI300X|MI300", 1307.4, 163.4, 192, 5300, 448, "MI300X"),
    ("AMD Instinct MI325X", "MI325X", 1307.4, 163.4, 256, 6000, 448, "MI325X"),
    ("TPU v4", "v4", 275.0, None, 32, 1228, 300, _CLOUD_TPU),
    ("TPU v5 lite", "TPU v5e|v5e", 197.0, None, 16, 819, 200, _CLOUD_TPU),
    ("TPU v5", "TPU v5p|v5p", 459.0, None, 95, 2765, 600, _CLOUD_TPU),
    ("TPU v6 lite", "TPU v6e|v6e|trillium", 918.0, None, 32, 1640, 400, _CLOUD_TPU),
    ("TPU7x", "TPU v7x|v7x|ironwood", 1153.5, None, 96, 3690, 300, f"{_CLOUD_TPU}, halved"),
)


def _kind(
    name: str,
    names: str,
    bfloat16: float,
    float32: float | None,
    gb: int,
    gb_per_s: int,
    link_gb_per_s: int | None,
    source: str,
) -> DeviceKind:
    maker, is_tpu = name.split()[0], name.startswith("TPU")
    peaks = {"bfloat16": bfloat16, "float32": float32}
    return DeviceKind(
        name=name,
        names=tuple(filter(None, names.split("|"))),
        platform="tpu" if is_tpu else "cuda" if maker == "NVIDIA" else "rocm",
        peak_flops={dtype: peak * 1e12 for dtype, peak in peaks.items() if peak},
        memory_bytes=gb * (2**30 if is_tpu else 10**9),
        memory_bytes_per_s=gb_per_s * 1e9,
        link_bytes_per_s=link_gb_per_s and link_gb_per_s * 1e9,
        source=source if is_tpu else f"{maker} {source} data sheet",
    )


def key_of(name: str) -> str:
    """Returns a name without case, spaces, hyphens and the maker."""
    letters = "".join(c for c in name.casefold() if c not in " -_")
    return letters.removeprefix("nvidia").removeprefix("amd").removeprefix("instinct")


#: All kinds with known figures.
KINDS: tuple[DeviceKind, ...] = tuple(_kind(*row) for row in _TABLE)
BY_KEY = {key_of(name): kind for kind in KINDS for name in (kind.name, *kind.names)}
