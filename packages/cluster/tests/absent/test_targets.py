# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import pickle

import pytest

from dovetail_cluster import compiled, devices, search


@pytest.mark.parametrize(
    "name, options, shown, count",
    [
        ("TPU v5e:16x16", {}, "TPU v5e:16x16", 256),
        ("v5e:4x8", {}, "TPU v5e:4x8", 32),
        ("TPU v5e:16x16 x 2", {}, "TPU v5e:16x16 x 2", 512),
        ("TPU v5e:16x16 x2", {}, "TPU v5e:16x16 x 2", 512),
        ("tpu V5P:2x2x4", {"slices": 3}, "TPU v5p:2x2x4 x 3", 48),
        ("TPU v5:4x4x8", {}, "TPU v5p:4x4x8", 128),
        ("v4:4x4x4", {}, "TPU v4:4x4x4", 64),
        ("trillium:8x8", {}, "TPU v6 lite:8x8", 64),
        ("TPU7x:2x2x2", {}, "TPU7x:2x2x2", 16),
        ("B200 x 8", {}, "NVIDIA B200 x 8", 8),
        ("GB200 x 72", {}, "NVIDIA GB200 x 72", 72),
        ("GB200 x 144", {}, "NVIDIA GB200 x 144", 144),
        ("MI300X x 8", {}, "AMD Instinct MI300X x 8", 8),
        ("NVIDIA H200", {"count": 8}, "NVIDIA H200 x 8", 8),
        ("h200 x 16", {}, "NVIDIA H200 x 16", 16),
        ("a100-80gb × 3", {}, "NVIDIA A100-SXM4-80GB x 3", 3),
        ("NVIDIA H100 80GB HBM3", {}, "NVIDIA H100 80GB HBM3 x 1", 1),
        ("cpu x 12", {}, "CPU x 12", 12),
    ],
)
def test_a_target_is_read_from_its_name(name, options, shown, count):
    target = devices(name, **options)
    assert (str(target), target.count) == (shown, count)
    assert repr(target) == f"devices({shown!r})"
    assert devices(shown) == target == pickle.loads(pickle.dumps(target))


def test_a_target_has_the_memory_of_one_device():
    assert devices("TPU v5e:4x4").memory_bytes == 16 * 2**30
    assert devices("H200 x 8").memory_bytes == 141 * 10**9
    assert devices("CPU x 8").memory_bytes is None


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("TPU v", {}, r"one known kind of device, got 'TPU v'; write one of 'TPU v4', 'TPU v5 "),
        ("A100 x 8", {}, r"got 'A100 x 8'; write one of 'NVIDIA A100-SXM4-40GB', 'NVIDIA A100-S"),
        ("NVIDIA H20 x 8", {}, r"known kind .* got 'NVIDIA H20 x 8'; write one of 'NVIDIA H200'"),
        ("TPU v5e:5x3", {}, r"one of the shapes 1x1, .* 16x16, got .*; write .*'TPU v5e:4x4'\)"),
        ("TPU v5e:8x4", {}, r"one of the shapes .*, got .*; write devices\('TPU v5e:4x8'\)"),
        ("TPU v6e:16x32", {}, r"one of the shapes .*, got .*; write devices\('TPU v6 .*:16x16'\)"),
        ("TPU v5p:2x3x4", {}, r"and ascending multiples of 4 up to 16x16x24, got .*v5p:2x2x4'\)"),
        ("TPU7x:4x4x6", {}, r"one of the shapes 1x1x1, .* up to 16x24x24, got 'TPU7x:4x4x6'"),
        ("TPU v4:16x16x32", {}, r"one of the shapes .* up to 16x16x16, got 'TPU v4:16x16x32'"),
        ("", {}, r"known kind of device, got ''; write one of 'NVIDIA A100.*'CPU'"),
        ("TPU v5e", {}, r"the 2 sizes of its slice, got 'TPU v5e'; write devices\('TPU v5e:4x4'\)"),
        ("TPU v5p:4x4", {}, r"the 3 sizes .* got 'TPU v5p:4x4'; write devices\('TPU v5p:4x4x4'\)"),
        ("TPU v5e:0x4", {}, r"one of the shapes .*, got 'TPU v5e:0x4'; write"),
        ("TPU v5e:4x4", {"count": 16}, r"got 'TPU v5e:4x4' with count=16; write"),
        ("TPU v5e:4x4 x 2", {"slices": 2}, r"said once, got .* with slices=2; write .*4x4 x 2'"),
        ("TPU v5e:4x4", {"slices": 0}, r"at least 1 and said once, got .* slices=0; write"),
        ("TPU v5e:4x4 x 0", {}, r"at least 1 and said once, got 'TPU v5e:4x4 x 0'"),
        ("H200:2x4", {}, r"no slices, got 'H200:2x4', .*; write devices\('NVIDIA H200 x 8'\)"),
        ("CPU x 8", {"slices": 2}, r"one number of devices and no slices, got .* slices=2; write"),
        ("CPU x 8", {"count": 8}, r"one number of devices .* got 'CPU x 8', count=8"),
        ("CPU x 0", {}, r"is at least 1, .* got 0; write devices\('CPU x 8'\)"),
        ("CPU", {"count": 0}, r"is at least 1, .* got 0; write devices\('CPU x 8'\)"),
        ("GB200 x 80", {}, r"above the 72 .* a multiple of 72, got 80; write .*GB200 x 72'"),
        (
            "H200 x 20",
            {},
            r"above the 8 .* of 8, got 20; write devices\('NVIDIA H200 x 16'\)",
        ),
    ],
)
def test_a_target_that_cannot_be_is_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        devices(name, **options)


@pytest.mark.parametrize("name", ["MI300X x 8", "L4", "A100-PCIE-40GB"])
def test_kinds_without_a_description_for_xla_are_refused_before_a_process_starts(name):
    build = pytest.fail
    message = rf"compiled for TPUs, CPUs and NVIDIA A100.*GB200, got .*{name.split()[0]}.*estimate"
    with pytest.raises(ValueError, match=message):
        compiled(build, target=devices(name))
    with pytest.raises(ValueError, match=message):
        search(build, targets=[devices("CPU"), devices(name)], choices=[{}], per=None)


@pytest.mark.tpu
@pytest.mark.parametrize("name", ["TPU7x:2x2x2", "TPU v6e:2x4", "TPU v4:2x2x1", "TPU v5p:4x4x4"])
def test_the_compiler_counts_the_devices_of_a_slice_alike(name):
    from dovetail_cluster.absent.worker import target_devices

    target = devices(name)
    present = target_devices(target)
    assert len(present) == target.count
    assert present[0].device_kind == target.kind.name
