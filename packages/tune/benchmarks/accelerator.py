# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Steps of the accelerator session: DPO of a Llama of 125 million parameters, beside training."""

from accelerator_step import Step

STEPS = (
    Step(
        name="preference-llama-125m",
        run="device_preference:train",
        order=26,
        proves=("preference losses with a reference",),
        limit_s=240,
        full={
            "sizes": {"vocab_size": 50304, "embed": 768, "depth": 12, "heads": 12, "mlp": 2048},
            "rows": 16,
            "length": 2048,
        },
        tiny={
            "sizes": {"vocab_size": 128, "embed": 32, "depth": 2, "heads": 2, "mlp": 64},
            "rows": 4,
            "length": 32,
        },
    ),
)
