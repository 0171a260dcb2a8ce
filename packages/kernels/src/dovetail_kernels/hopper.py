# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Conditions of our own kernels for Hopper GPUs."""

import functools
import importlib
import re

from dovetail_kernels.dispatch import Device

# As JAX names them: "NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA GH200 480GB".
_NAMES = re.compile(r"\bG?H(100|200|20|800)\b")


@functools.cache
def _missing() -> str | None:
    """Returns the missing undeclared dependency of JAX 0.10's GPU kernels, or None if present."""
    try:
        importlib.import_module("jax.experimental.pallas.mosaic_gpu")
    except ModuleNotFoundError as error:
        return error.name
    return None


def refuse_device(device: Device) -> str | None:
    """Returns why a kernel for Hopper GPUs cannot run on a device, or None."""
    if device.platform != "gpu" or not _NAMES.search(device.kind):
        return (
            "needs a Hopper GPU (H100, H200, GH200), got "
            f"platform={device.platform!r}, kind={device.kind!r}"
        )
    if _missing() is not None:
        return f"needs {_missing()}, which this JAX imports for GPU kernels: pip install absl-py"
    return None
