# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Targets: devices to compile for, present or not.

`Devices` is a description, so it pickles and needs no backend. The worker turns it into devices of
JAX: a topology of libtpu, one of XLA's GPU compiler with the figures below, or the host's CPU taken
as several devices.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re

from dovetail_cluster._device_kinds import BY_KEY, KINDS, DeviceKind, key_of

_FORM = re.compile(r"(?P<kind>.*?)(?::(?P<chips>\d+(?:x\d+)*))?(?:\s+[x×]\s*(?P<times>\d+))?")
_CPU = DeviceKind(name="CPU", platform="cpu")
_KINDS = {**BY_KEY, "cpu": _CPU}
_PLANES = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_BLOCKS = ("2x2x1", "2x2x2", "2x2x4", "2x4x4")


@dataclasses.dataclass(frozen=True)
class Slices:
    """TPU slices on offer.

    Attributes:
        topology: Name in topologies of libtpu.
        shapes: Shapes in chips.
        largest: Three sizes may also be ascending multiples of 4 up to these.
        cores: Devices of a chip.
    """

    topology: str
    shapes: tuple[str, ...]
    largest: tuple[int, ...] = ()
    cores: int = 1

    def has(self, chips: tuple[int, ...]) -> bool:
        """Tests whether slices of this shape are on offer."""
        if "x".join(map(str, chips)) in self.shapes:
            return True
        ascending = list(chips) == sorted(chips) and not any(n < 4 or n % 4 for n in chips)
        within = len(chips) == len(self.largest) and all(map(int.__le__, chips, self.largest))
        return ascending and within


SLICES = {
    "TPU v4": Slices("v4", _BLOCKS, (16, 16, 16)),
    "TPU v5 lite": Slices("v5e", _PLANES),
    "TPU v5": Slices("v5p", ("1x1x1", *_BLOCKS), (16, 16, 24)),
    "TPU v6 lite": Slices("v6e", _PLANES),
    "TPU7x": Slices("tpu7x", ("1x1x1", *_BLOCKS), (16, 24, 24), cores=2),
}


def joined(kind: DeviceKind) -> int:
    """Returns the number of GPUs that fast links join: those of a host, or of a rack of GB200."""
    return 72 if kind.name == "NVIDIA GB200" else 8


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
_SINCE_HOPPER = "fpus_per_core: 128 shared_memory_per_core: 233472 " + (
    "shared_memory_per_block_optin: 232448"
)
_HOPPER = f"{_SINCE_HOPPER} core_count: 132 clock_rate_ghz: 1.98 " + (
    "cuda_compute_capability { major: 9 }"
)
_BLACKWELL = f"{_SINCE_HOPPER} cuda_compute_capability {{ major: 10 }}"
# XLA's description of a GPU, for its fusions, tiles and launches.
_CONFIGS = {
    "NVIDIA A100-SXM4-40GB": _AMPERE,
    "NVIDIA A100-SXM4-80GB": _AMPERE,
    "NVIDIA H100 80GB HBM3": f"l2_cache_size: 52428800 {_HOPPER}",
    "NVIDIA H200": f"l2_cache_size: 62914560 {_HOPPER}",
    "NVIDIA B200": f"core_count: 148 clock_rate_ghz: 1.965 l2_cache_size: 132644864 {_BLACKWELL}",
    "NVIDIA GB200": f"core_count: 152 clock_rate_ghz: 2.062 l2_cache_size: 135528448 {_BLACKWELL}",
}


def target_config(kind: DeviceKind) -> str | None:
    """Returns XLA's description of a GPU as protobuf text, None for a kind without one."""
    if kind.name not in _CONFIGS:
        return None
    assert kind.memory_bytes_per_s is not None
    sizes = f"device_memory_size: {kind.memory_bytes} "
    sizes += f"memory_bandwidth: {kind.memory_bytes_per_s:.0f}"
    return (
        f"gpu_device_info {{ {sizes} {_CUDA} {_CONFIGS[kind.name]} }} "
        f'platform_name: "CUDA" device_description_str: "{kind.name}"'
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Devices:
    """Devices to compile for. Make one with `devices`.

    Attributes:
        kind: Kind of the devices.
        chips: Sizes of a TPU slice, or the number of GPUs or CPU devices.
        slices: Number of TPU slices, joined by the data center's network.
    """

    kind: DeviceKind
    chips: tuple[int, ...]
    slices: int = 1

    @property
    def count(self) -> int:
        """Number of devices."""
        cores = SLICES[self.kind.name].cores if self.kind.platform == "tpu" else 1
        return math.prod(self.chips) * cores * self.slices

    @property
    def memory_bytes(self) -> int | None:
        """Memory of one device, None for a CPU."""
        return self.kind.memory_bytes

    def __str__(self) -> str:
        if self.kind.platform != "tpu":
            return f"{self.kind.name} x {self.count}"
        slices = f" x {self.slices}" if self.slices > 1 else ""
        return f"{_title(self.kind)}:{'x'.join(map(str, self.chips))}{slices}"

    def __repr__(self) -> str:
        return f"devices({str(self)!r})"


def check_description(target: Devices) -> None:
    """Raises ValueError for GPUs of which XLA has no description here."""
    if target.kind.platform in ("cuda", "rocm") and target_config(target.kind) is None:
        raise ValueError(
            f"programs are compiled for TPUs, CPUs and {', '.join(_CONFIGS)}, got {target}; "
            f"name one of those, or only estimate the step (dovetail_train.estimate)"
        )


def devices(name: str, *, count: int | None = None, slices: int = 1) -> Devices:
    """Returns a target for `compiled`. The devices need not exist.

    Args:
        name: Kind of device. A TPU has the sizes of its slice, "TPU v5e:16x16", and
            "TPU v5e:16x16 x 2" means two slices. "NVIDIA H200 x 8" and "CPU x 8" have a number of
            devices. Case, spaces and hyphens of the kind do not matter.
        count: Number of GPUs or CPU devices, in the place of "x 8". Default: 1. Above the GPUs of
            one host, or of one rack of GB200, it must be whole hosts.
        slices: Number of TPU slices, in the place of "x 2".

    Raises:
        ValueError: The kind is unknown, or no such number or slice of it is on offer.

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
    fast = joined(kind)
    if number < 1 or (kind.platform != "cpu" and number > fast and number % fast):
        whole = max(1, round(number / fast)) * fast
        raise ValueError(
            f"a number of devices is at least 1, and above the {fast} GPUs that fast links join "
            f"a multiple of {fast}, got {number}; write devices('{kind.name} x {whole}')"
        )
    return Devices(kind=kind, chips=(number,))


def _slices(
    kind: DeviceKind, chips: tuple[int, ...], times: int | None, *, name: str, count: int | None,
    slices: int,
) -> Devices:  # fmt: skip
    title, offer = _title(kind), SLICES[kind.name]
    dimensions = offer.shapes[0].count("x") + 1
    shape = "x".join(["4"] * dimensions)
    if count is not None or len(chips) != dimensions:
        given = "" if count is None else f" with count={count}"
        raise ValueError(
            f"a {title} target has the {dimensions} sizes of its slice, got {name!r}"
            f"{given}; write devices('{title}:{shape}')"
        )
    if not offer.has(chips):
        above = "x".join(map(str, offer.largest))
        more = f", and ascending multiples of 4 up to {above}" if above else ""
        raise ValueError(
            f"a slice of {title} has one of the shapes {', '.join(offer.shapes)}{more}, got "
            f"{name!r}; write devices('{title}:{_near_shape(offer, chips)}')"
        )
    if (times is not None and slices != 1) or (times or slices) < 1 or times == 0:
        raise ValueError(
            f"the number of slices is at least 1 and said once, got {name!r} with slices={slices}; "
            f"write devices('{title}:{shape} x 2')"
        )
    return Devices(kind=kind, chips=chips, slices=times or slices)


def _title(kind: DeviceKind) -> str:
    """Returns the usual name of a TPU: JAX's names of v5e and v5p hardly differ."""
    return next((name for name in kind.names if name.startswith("TPU v5")), kind.name)


def _near_shape(offer: Slices, chips: tuple[int, ...]) -> str:
    """Returns the shape on offer with the nearest number of chips, the same sizes first."""
    if offer.has(tuple(sorted(chips))):
        return "x".join(map(str, sorted(chips)))
    size = math.prod(chips)
    return min(offer.shapes, key=lambda s: abs(math.prod(map(int, s.split("x"))) - size))


def _kind(text: str, name: str) -> DeviceKind:
    key = key_of(text)
    if kind := _KINDS.get(key):
        return kind
    near = [kind.name for kind in KINDS if key and key_of(kind.name).startswith(key)]
    near = near or [_KINDS[k].name for k in difflib.get_close_matches(key, _KINDS, n=3, cutoff=0.5)]
    names = dict.fromkeys(near or [kind.name for kind in (*KINDS, _CPU)])
    raise ValueError(
        f"a target names one known kind of device, got {name!r}; write one of "
        f"{', '.join(map(repr, names))}"
    )
