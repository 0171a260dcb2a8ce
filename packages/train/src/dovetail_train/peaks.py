# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Peak rates of dense matrix products by the exact `device_kind`, from the makers' data sheets."""

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


def peak_flops(device_kind: str, dtype: str) -> float | None:
    """FLOP/s of one device, or None when the table does not have exactly this kind and dtype."""
    return _PEAKS.get((device_kind, dtype))
