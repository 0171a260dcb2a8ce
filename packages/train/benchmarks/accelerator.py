# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Steps of the accelerator session: training Llamas of 125 million and 1.2 billion parameters."""

from accelerator_step import Step

SMALL = {"vocab_size": 128, "embed": 32, "depth": 2, "heads": 2, "kv_heads": 2, "mlp": 64}

STEPS = (
    Step(
        name="step-125m",
        run="device_training:steps",
        order=23,
        limit_s=90,
        full={
            "sizes": {
                "vocab_size": 50304,
                "embed": 768,
                "depth": 12,
                "heads": 12,
                "kv_heads": 12,
                "mlp": 2048,
            },
            "rows": 16,
            "length": 2048,
        },
        tiny={"sizes": SMALL, "rows": 4, "length": 32},
    ),
    Step(
        name="step-1.2b",
        run="device_training:steps",
        order=24,
        limit_s=120,
        full={
            "sizes": {
                "vocab_size": 128256,
                "embed": 2048,
                "depth": 16,
                "heads": 32,
                "kv_heads": 8,
                "mlp": 8192,
            },
            "rows": 4,
            "length": 4096,
        },
        tiny={"sizes": SMALL, "rows": 4, "length": 32},
    ),
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
