# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Steps of the accelerator session: decoding by the engine, bound by the memory's bandwidth."""

from accelerator_step import Step

FULL = {
    "sizes": {
        "vocab_size": 128256,
        "embed": 2048,
        "depth": 16,
        "heads": 32,
        "kv_heads": 8,
        "mlp": 8192,
    },
    "rows": (1, 8, 64),
    "prompt": 2048,
    "tokens": 64,
}
TINY = {
    "sizes": {"vocab_size": 64, "embed": 32, "depth": 2, "heads": 4, "kv_heads": 2, "mlp": 48},
    "rows": (1, 3),
    "prompt": 24,
    "tokens": 4,
}

STEPS = (
    Step(
        name="engine-bfloat16",
        run="device_engine:decode",
        order=27,
        limit_s=300,
        full=FULL | {"weights": "bfloat16"},
        tiny=TINY | {"weights": "bfloat16"},
        proves=("steps of the engine",),
    ),
    Step(
        name="engine-int8",
        run="device_engine:decode",
        order=28,
        limit_s=300,
        full=FULL | {"weights": "int8"},
        tiny=TINY | {"weights": "int8"},
    ),
)
