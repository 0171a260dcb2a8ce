# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Steps of the accelerator session: products of decoding, and of training, quantized."""

from accelerator_step import Step

STEPS = (
    Step(
        name="linear",
        run="device_products:linear",
        order=59,
        limit_s=120,
        full={"rows": (1, 2, 8, 64, 512), "inputs": 4096, "outputs": 14336, "chain": 50},
        tiny={"rows": (1, 2), "inputs": 128, "outputs": 256, "chain": 2},
    ),
    Step(
        name="products",
        run="device_products:products",
        order=60,
        limit_s=180,
        full={"rows": (1, 16), "width": 4096, "mlp": 14336, "depth": 4, "chain": 20},
        tiny={"rows": (1,), "width": 128, "mlp": 256, "depth": 1, "chain": 2},
    ),
    Step(
        name="training",
        run="device_products:training",
        order=61,
        limit_s=120,
        full={"rows": (4096,), "width": 4096, "chain": 10},
        tiny={"rows": (32,), "width": 128, "chain": 2},
    ),
)
