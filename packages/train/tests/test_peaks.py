# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
from dovetail_train.peaks import peak_flops


def test_only_the_exact_kind_and_dtype_has_a_peak():
    assert peak_flops("NVIDIA H200", "bfloat16") == 989.4e12
    assert peak_flops("NVIDIA H200", "float32") == 494.7e12
    assert peak_flops("NVIDIA H2000", "bfloat16") is None
    assert peak_flops("cpu", "float32") is None
