# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Functions that daemons call in processes of their own: the probe, the watch for notices."""

from __future__ import annotations

import time
from collections.abc import Callable

LIMIT_S = 120.0  # of a probe; the start of CUDA on eight devices takes up to half a minute


def probe_devices() -> None:
    """Computes on each device of this host, and copies from each to the next.

    Raises:
        RuntimeError: A device returned wrong numbers.
    """
    import jax
    import numpy as np

    devices = jax.local_devices()
    values = np.arange(1024, dtype=np.float32) % 7
    square = jax.jit(lambda x: x * x)
    for i, device in enumerate(devices):
        result = square(jax.device_put(values, device))
        check(str(device), np.asarray(result), values * values)
        neighbour = devices[(i + 1) % len(devices)]
        copy = jax.device_put(result, neighbour)
        check(f"the copy from {device} to {neighbour}", np.asarray(copy), values * values)


def check(name: str, result: object, expected: object) -> None:
    """Compares two arrays bit for bit.

    Args:
        name: What has computed `result`, for the message.
        result: Numbers of a device.
        expected: The right numbers.

    Raises:
        RuntimeError: They differ.
    """
    import numpy as np

    wrong = int(np.sum(np.asarray(result) != np.asarray(expected)))
    if wrong:
        raise RuntimeError(
            f"{name} must return exact products, got {wrong} wrong numbers of "
            f"{np.size(np.asarray(expected))}; take the host out of service"
        )


def watch(notice: Callable[[], bool], *, every_s: float = 1.0) -> None:
    """Calls `notice` each `every_s` seconds, and returns once it says True."""
    while not notice():
        time.sleep(every_s)
