# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Peak rates and memories by the exact `device_kind`, from the makers' data sheets."""

# FLOP/s without sparsity. NVIDIA: A100, H100 and H200 data sheets (SXM). float32 products of JAX
# on these devices run as TF32 unless a higher precision is asked for. Google: Cloud TPU "system
# architecture" pages, per chip; no float32 figures are published.
_PEAKS = {
    ("NVIDIA A100-SXM4-40GB", "bfloat16"): 312e12,
    ("NVIDIA A100-SXM4-40GB", "float32"): 156e12,
    ("NVIDIA A100-SXM4-80GB", "bfloat16"): 312e12,
    ("NVIDIA A100-SXM4-80GB", "float32"): 156e12,
    ("NVIDIA H100 80GB HBM3", "bfloat16"): 989.4e12,
    ("NVIDIA H100 80GB HBM3", "float32"): 494.7e12,
    ("NVIDIA H200", "bfloat16"): 989.4e12,
    ("NVIDIA H200", "float32"): 494.7e12,
    ("TPU v4", "bfloat16"): 275e12,
    ("TPU v5 lite", "bfloat16"): 197e12,
    ("TPU v5", "bfloat16"): 459e12,
    ("TPU v6 lite", "bfloat16"): 918e12,
}

# (bytes of memory, bytes per second). The same sources; GB of 1e9 bytes, GiB for Cloud TPU.
_MEMORY = {
    "NVIDIA A100-SXM4-40GB": (40 * 10**9, 1555e9),
    "NVIDIA A100-SXM4-80GB": (80 * 10**9, 2039e9),
    "NVIDIA H100 80GB HBM3": (80 * 10**9, 3350e9),
    "NVIDIA H200": (141 * 10**9, 4800e9),
    "TPU v4": (32 * 2**30, 1228e9),
    "TPU v5 lite": (16 * 2**30, 819e9),
    "TPU v5": (95 * 2**30, 2765e9),
    "TPU v6 lite": (32 * 2**30, 1640e9),
}


def peak_flops(device_kind: str, dtype: str) -> float | None:
    """Returns FLOP/s of one device, or None if the table lacks this exact kind and dtype."""
    return _PEAKS.get((device_kind, dtype))


def memory(device_kind: str) -> tuple[int, float] | None:
    """Returns (bytes, bytes per second) of one device, or None if the table lacks the kind."""
    return _MEMORY.get(device_kind)
