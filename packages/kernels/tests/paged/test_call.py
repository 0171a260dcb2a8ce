# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What is known of a call before it is traced."""

import dataclasses

from dovetail_kernels.dispatch import Device
from dovetail_kernels.paged.call import PagedCall


def test_what_follows_from_the_sizes():
    call = PagedCall(
        queries=1,
        heads=2,
        kv_heads=1,
        width=8,
        pages=9,
        page_size=5,
        requests=1,
        columns=7,
        dtype="float32",
        pages_dtype="float32",
        window=None,
        soft_cap=None,
        sinks=False,
        scale=1.0,
        value_width=None,
        lse=False,
        invariant=False,
        single=False,
        device=Device(platform="cpu", kind="cpu"),
    )
    assert call.keys == 35
    assert hash(call) is not None  # a static argument of jax.jit
    assert call.inner == "float32"
    assert dataclasses.replace(call, dtype="bfloat16").inner == "float32"
    assert dataclasses.replace(call, pages_dtype="float64").inner == "float64"
    assert (call.operands, call.out_width, call.quantized) == ("float32", 8, False)
    codes = dataclasses.replace(call, dtype="bfloat16", pages_dtype="int8", value_width=5)
    assert (codes.operands, codes.out_width, codes.quantized) == ("bfloat16", 5, True)
    assert dataclasses.replace(codes, pages_dtype="float16").operands == "float32"
