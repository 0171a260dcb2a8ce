# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Steps of the accelerator session: a bundle on this device, its sidecar, and batched requests."""

from accelerator_step import Step

NETWORK = {
    "full": {"image": 224, "width": 64, "blocks": (3, 4, 6, 3), "classes": 1000},
    "tiny": {"image": 16, "width": 4, "blocks": (1, 1), "classes": 7},
}

STEPS = (
    Step(
        name="bundle",
        run="device_serving:bundle",
        order=29,
        limit_s=120,
        full={"sizes": NETWORK["full"], "batch_sizes": (1, 8)},
        tiny={"sizes": NETWORK["tiny"], "batch_sizes": (1, 4)},
        timed=False,
        proves=("programs for several platforms in one bundle", "a self test on the device"),
    ),
    Step(
        name="sidecar",
        run="device_serving:sidecar",
        order=30,
        limit_s=180,
        full={"sizes": NETWORK["full"], "batch_sizes": (1, 8)},
        tiny={"sizes": NETWORK["tiny"], "batch_sizes": (1, 4)},
        proves=("programs compiled ahead of time",),
    ),
    Step(
        name="throughput",
        run="device_serving:throughput",
        order=31,
        limit_s=240,
        full={
            "sizes": NETWORK["full"],
            "batch_sizes": (1, 16, 64, 256),
            "clients": (16, 256),
            "seconds": 5.0,
        },
        tiny={
            "sizes": NETWORK["tiny"],
            "batch_sizes": (1, 4),
            "clients": (2, 8),
            "seconds": 0.2,
        },
        proves=("batching of requests",),
    ),
)
