# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Steps of the accelerator session: decoding, whose limit is the memory's bandwidth."""

from accelerator_step import Step

STEPS = (
    Step(
        name="decode",
        run="device_decoding:decode",
        order=26,
        limit_s=180,
        full={
            "sizes": {
                "vocab_size": 128256,
                "embed": 2048,
                "depth": 16,
                "heads": 32,
                "kv_heads": 8,
                "mlp": 8192,
            },
            "rows": (1, 32),
            "length": 1024,
            "tokens": 64,
            "copied_bytes": 2**30,
        },
        tiny={
            "sizes": {
                "vocab_size": 64,
                "embed": 32,
                "depth": 2,
                "heads": 4,
                "kv_heads": 2,
                "mlp": 48,
            },
            "rows": (1, 3),
            "length": 16,
            "tokens": 4,
            "copied_bytes": 2**12,
        },
    ),
)
