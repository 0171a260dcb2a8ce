# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import pickle

import pytest

from dovetail_cluster import devices


@pytest.mark.parametrize(
    "name, options, shown, count",
    [
        ("TPU v5e:16x16", {}, "TPU v5e:16x16", 256),
        ("v5e:4x8", {}, "TPU v5e:4x8", 32),
        ("TPU v5e:16x16 x 2", {}, "TPU v5e:16x16 x 2", 512),
        ("TPU v5e:16x16 x2", {}, "TPU v5e:16x16 x 2", 512),
        ("tpu V5P:2x3x4", {"slices": 3}, "TPU v5p:2x3x4 x 3", 72),
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
        ("TPU v5", {}, r"names a known kind of device, got 'TPU v5'; write one of 'TPU v5.'"),
        ("NVIDIA H20 x 8", {}, r"known kind .* got 'NVIDIA H20 x 8'; write one of 'NVIDIA H200'"),
        ("", {}, r"known kind of device, got ''; write one of 'TPU v4', .*'CPU'"),
        ("TPU v5e", {}, r"the 2 sizes of its slice, got 'TPU v5e'; write devices\('TPU v5e:4x4'\)"),
        ("TPU v5p:4x4", {}, r"the 3 sizes .* got 'TPU v5p:4x4'; write devices\('TPU v5p:4x4x4'\)"),
        ("TPU v5e:0x4", {}, r"sizes of its slice, got 'TPU v5e:0x4'; write"),
        ("TPU v5e:4x4", {"count": 16}, r"got 'TPU v5e:4x4' with count=16; write"),
        ("TPU v5e:4x4 x 2", {"slices": 2}, r"said once, got .* with slices=2; write .*4x4 x 2'"),
        ("TPU v5e:4x4", {"slices": 0}, r"at least 1 and said once, got .* slices=0; write"),
        ("TPU v5e:4x4 x 0", {}, r"at least 1 and said once, got 'TPU v5e:4x4 x 0'"),
        ("H200:2x4", {}, r"no slices, got 'H200:2x4', .*; write devices\('NVIDIA H200 x 8'\)"),
        ("CPU x 8", {"slices": 2}, r"one number of devices and no slices, got .* slices=2; write"),
        ("CPU x 8", {"count": 8}, r"one number of devices .* got 'CPU x 8', count=8"),
        ("CPU x 0", {}, r"is at least 1, .* got 0; write devices\('CPU x 8'\)"),
        ("CPU", {"count": 0}, r"is at least 1, .* got 0; write devices\('CPU x 8'\)"),
        ("H200 x 20", {}, r"a multiple of the 8 .* got 20; write devices\('NVIDIA H200 x 16'\)"),
    ],
)
def test_a_target_that_cannot_be_is_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        devices(name, **options)
