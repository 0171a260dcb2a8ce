# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Steps of the accelerator session: Muon, and Adam with its state in eight bits."""

from accelerator_step import Step

STEPS = (
    Step(
        name="step",
        run="device_step:optimizers",
        order=55,
        limit_s=180,
        full={"layers": 8, "embed": 2048, "hidden": 8192, "chain": 5},
        tiny={"layers": 2, "embed": 16, "hidden": 48, "chain": 2},
        proves=("Muon", "optimizer state in 8 bits"),
    ),
)
