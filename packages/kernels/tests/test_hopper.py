# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from dovetail_kernels import hopper
from dovetail_kernels.dispatch import Device


@pytest.mark.parametrize("kind", ["NVIDIA H100 PCIe", "NVIDIA H200", "NVIDIA GH200 480GB"])
def test_takes_hopper(kind):
    pytest.importorskip("jax.experimental.pallas.mosaic_gpu")
    assert hopper.refuse_device(Device(platform="gpu", kind=kind)) is None


@pytest.mark.parametrize(
    "platform, kind",
    [("cpu", "cpu"), ("gpu", "NVIDIA A100-SXM4-40GB"), ("gpu", "NVIDIA B200"), ("gpu", "MI300X")],
)
def test_refuses_others(platform, kind):
    refusal = hopper.refuse_device(Device(platform=platform, kind=kind))
    assert refusal == (
        f"needs a Hopper GPU (H100, H200, GH200), got platform={platform!r}, kind={kind!r}"
    )


def test_a_module_that_jax_needs_and_lacks_is_named(monkeypatch):
    def fail(name):
        raise ModuleNotFoundError(f"No module named 'absl', wanted by {name}", name="absl")

    monkeypatch.setattr(hopper.importlib, "import_module", fail)
    hopper._missing.cache_clear()
    try:
        assert hopper.refuse_device(Device(platform="gpu", kind="NVIDIA H200")) == (
            "needs absl, which this JAX imports for GPU kernels: pip install absl-py"
        )
    finally:
        hopper._missing.cache_clear()
