# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
from dovetail_kernels.dispatch import Device
from dovetail_kernels.grouped.call import GroupedMatmulCall


def test_elements_of_arguments_and_result():
    device = Device(platform="cpu", kind="cpu")
    call = GroupedMatmulCall(rows=7, inner=3, outer=5, count=2, dtype="float32", device=device)
    assert call.elements == 7 * 3 + 2 * 3 * 5 + 7 * 5
