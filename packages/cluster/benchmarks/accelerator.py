# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Steps of the accelerator session: faults on this device's host, and a compilation without it."""

from accelerator_step import Step

STEPS = (
    Step(
        name="faults",
        run="device_cluster:faults",
        order=12,
        limit_s=150,
        full={"count": 6, "size": 2**26, "stall_s": 10.0},
        tiny={"count": 2, "size": 2**10, "stall_s": 5.0},
        proves=("a test for users: their function survives seeded faults",),
        timed=False,
    ),
    Step(
        name="absent",
        run="device_cluster:absent",
        order=13,
        limit_s=150,
        proves=("Compile for a mesh of devices that are absent",),
        full={
            "sizes": {"vocab_size": 50304, "embed": 768, "depth": 12, "heads": 12, "mlp": 2048},
            "rows": 16,
            "length": 1024,
        },
        tiny={
            "sizes": {"vocab_size": 128, "embed": 32, "depth": 2, "heads": 2, "mlp": 64},
            "rows": 4,
            "length": 32,
        },
    ),
)
