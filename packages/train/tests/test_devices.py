# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Figures in the table below are copied from the makers' pages, not from the code."""

import jax
import pytest

from dovetail_train import abstract_mesh, make_mesh
from dovetail_train.mesh.devices import KINDS, absent_twin, kind_of, peak_flops

NAMES = {
    "NVIDIA A100-SXM4-40GB": ("a100-40gb", "A100 40GB"),
    "NVIDIA A100-SXM4-80GB": ("a100-80gb", "A100_80GB", "nvidia a100-sxm4-80gb"),
    "NVIDIA A100-PCIE-40GB": ("a100-pcie-40gb",),
    "NVIDIA A100 80GB PCIe": ("A100 PCIe 80GB",),
    "NVIDIA H100 80GB HBM3": ("h100", "H100-SXM", "NVIDIA H100"),
    "NVIDIA H100 PCIe": ("h100-pcie",),
    "NVIDIA H200": ("H200", "h200", " h-200 ", "NVIDIA H200"),
    "NVIDIA L4": ("l4",),
    "NVIDIA L40S": ("L40s",),
    "NVIDIA B200": ("b200",),
    "NVIDIA GB200": ("gb200",),
    "AMD Instinct MI300X": ("mi300x", "AMD MI300X", "MI300"),
    "AMD Instinct MI325X": ("mi325x",),
    "TPU v4": ("v4", "tpu-v4"),
    "TPU v5 lite": ("v5e", "TPU v5e", "v5-e"),
    "TPU v5": ("v5p", "TPU v5p"),
    "TPU v6 lite": ("v6e", "trillium", "TPU V6E"),
    "TPU7x": ("tpu7x", "TPU 7x", "ironwood"),
}
PLATFORMS = {"NVIDIA": "cuda", "AMD": "rocm", "TPU": "tpu", "TPU7x": "tpu"}
# (bfloat16 TFLOP/s without sparsity, bytes of memory, GB/s)
FIGURES = {
    "a100-40gb": (312, 40e9, 1555),
    "a100-80gb": (312, 80e9, 2039),
    "h100": (989.4, 80e9, 3350),
    "h200": (989.4, 141e9, 4800),
    "l4": (121, 24e9, 300),
    "l40s": (362, 48e9, 864),
    "b200": (2250, 180e9, 8000),
    "gb200": (2500, 186e9, 8000),
    "mi300x": (1307.4, 192e9, 5300),
    "mi325x": (1307.4, 256e9, 6000),
    "tpu7x": (2307 / 2, 192 * 2**29, 7380 / 2),  # JAX shows each chip as two devices
    "v5e": (197, 16 * 2**30, 819),
    "v5p": (459, 95 * 2**30, 2765),
    "trillium": (918, 32 * 2**30, 1640),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_kind_has_its_usual_names(name):
    assert {kind_of(each).name for each in (name, *NAMES[name])} == {name}
    assert kind_of(name).platform == PLATFORMS[name.split()[0]]


def test_every_kind_is_in_the_table_of_names():
    assert [kind.name for kind in KINDS] == list(NAMES)
    assert all(kind.source and kind.memory_bytes and kind.memory_bytes_per_s for kind in KINDS)


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_those_of_the_makers(name):
    kind, (tflops, size, rate) = kind_of(name), FIGURES[name]
    assert kind.peak_flops["bfloat16"] == tflops * 1e12
    assert (kind.memory_bytes, kind.memory_bytes_per_s) == (size, rate * 1e9)


@pytest.mark.parametrize(
    "device, instead",
    [
        ("toaster", r"write one of 'NVIDIA A100-SXM4-40GB', .*'TPU7x'"),
        ("", r"write one of 'NVIDIA A100-SXM4-40GB', .*'TPU v6 lite'"),
        ("NVIDIA", r"write one of 'NVIDIA A100-SXM4-40GB', .*'TPU v6 lite'"),
        ("H2000", r"write one of 'NVIDIA H200'"),
        ("h20", r"write one of 'NVIDIA H200'"),
        (
            "A100",
            r"write one of 'NVIDIA A100-SXM4-40GB', 'NVIDIA A100-SXM4-80GB', "
            r"'NVIDIA A100-PCIE-40GB', 'NVIDIA A100 80GB PCIe'$",
        ),
        ("TPU v5 light", r"write one of 'TPU v5 lite'"),
    ],
)
def test_other_names_are_refused_with_near_ones(device, instead):
    message = rf"device must name one kind of device .*, got device='{device}'; {instead}"
    with pytest.raises(ValueError, match=message):
        kind_of(device)
    with pytest.raises(ValueError, match=message):
        abstract_mesh(8, device=device)


@pytest.mark.parametrize("device", [5, ["H200"], None])
def test_a_name_is_a_string(device, unchecked):
    message = (
        r"device must be the name of a kind.*, got device=.*; write for example device=\"H200\""
    )
    with pytest.raises(TypeError, match=message):
        kind_of(device)


def test_a_kind_of_this_machine_has_no_figures_unless_the_table_lists_it():
    kind = kind_of(jax.devices()[0].device_kind)
    assert (kind.platform, kind.memory_bytes, kind.memory_bytes_per_s) == ("cpu", None, None)
    assert kind.peak_flops == {}
    assert kind_of("CPU").name == "cpu"


def test_only_the_exact_kind_and_dtype_has_a_peak():
    assert peak_flops("NVIDIA H200", "bfloat16") == 989.4e12
    assert peak_flops("NVIDIA H200", "float32") == 494.7e12
    assert peak_flops("NVIDIA H2000", "bfloat16") is None
    assert peak_flops("H200", "bfloat16") is None
    assert peak_flops("cpu", "float32") is None


def test_a_mesh_says_its_absent_devices():
    mesh = abstract_mesh(8, device="v5e", tensor=2)
    assert (mesh.shape["fsdp"], mesh.shape["tensor"]) == (4, 2)
    device = mesh.abstract_device
    assert (device.device_kind, device.platform) == ("TPU v5 lite", "tpu")
    assert abstract_mesh(8).abstract_device is None
    own = make_mesh()
    twin = absent_twin(own, kind_of("h200"))
    assert (twin.shape, twin.axis_types) == (own.shape, own.axis_types)
    assert twin.abstract_device.device_kind == "NVIDIA H200"
