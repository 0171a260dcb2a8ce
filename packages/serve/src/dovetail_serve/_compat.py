# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Moving names of JAX. Tried on jax 0.10.2, 0.11.2 and 0.12.0.1."""

from typing import Any

from jax.experimental.layout import Format, Layout
from jax.experimental.serialize_executable import deserialize_and_load, serialize
from jax.sharding import AbstractDevice

__all__ = [
    "AbstractDevice",
    "Format",
    "Layout",
    "deserialize_and_load",
    "platform_of",
    "serialize",
]


def platform_of(device: Any) -> str:
    """Returns the name of a device's platform in `jax.export`.

    A device of CUDA and one of ROCm both call their platform "gpu".
    """
    if device.platform != "gpu":
        return device.platform
    return "rocm" if "rocm" in device.client.platform_version.lower() else "cuda"
