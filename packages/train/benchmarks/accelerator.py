# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Steps of the accelerator session: a hundred steps of a Llama of 125 million parameters."""

from accelerator_step import Step

STEPS = (
    Step(
        name="llama-125m",
        run="device_training:train",
        order=25,
        limit_s=240,
        full={
            "sizes": {"vocab_size": 50304, "embed": 768, "depth": 12, "heads": 12, "mlp": 2048},
            "rows": 16,
            "peer_rows": 4,
            "length": 2048,
            "steps": 100,
        },
        tiny={
            "sizes": {"vocab_size": 128, "embed": 32, "depth": 2, "heads": 2, "mlp": 64},
            "rows": 4,
            "peer_rows": 2,
            "length": 32,
            "steps": 100,
        },
        proves=("the training step",),
    ),
)
