# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Steps of the accelerator session: traces of this device, which no test can make without one."""

from accelerator_step import Step

SIZES = {"embed": 768, "depth": 12, "heads": 12, "kv_heads": 12, "mlp": 2048}
FULL = {"sizes": {"vocab_size": 50304, **SIZES}, "rows": 8, "length": 1024, "steps": 10}
SMALL = {"vocab_size": 64, "embed": 32, "depth": 2, "heads": 4, "kv_heads": 2, "mlp": 48}
TINY = {"sizes": SMALL, "rows": 2, "length": 32, "steps": 3}

STEPS = tuple(
    Step(
        name=f"trace-{name}",
        run=f"device_traces:{name}",
        order=40 + order,
        limit_s=120,
        full=FULL,
        tiny=TINY,
        timed=False,
    )
    for order, name in enumerate(("training", "engine", "bundle"))
)
