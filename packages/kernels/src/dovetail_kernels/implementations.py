# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Implementations of your own, for the `impl` argument of an operation.

    attention(q, k, v, causal=True, impl=[MINE, "blocked"])

An `Implementation` is asked like those of the package: its `refuse(call)` gives the reason against
a call, its `work(call)` the cost for `explain`, and its `run(call, inputs)` computes the result.
`call` has the static facts, `inputs` the arrays, checked:

| operation | call | inputs | result of `run` |
|---|---|---|---|
| `attention` | `AttentionCall` | `AttentionInputs` | out, with `stats` (out, `SoftmaxStats`) |
| `paged_attention` | `PagedCall` | `PagedInputs` | out |
| `grouped_matmul` | `GroupedMatmulCall` | `GroupedMatmulInputs` | out |
| `quantized_matmul` | `QuantizedMatmulCall` | `QuantizedMatmulInputs` | out |
| `linear_cross_entropy` | `LossCall` | `LossInputs` | (sum, count, z_sum, correct) |
| `linear_logprobs` | `LossCall` | `LossInputs` | (logprob, entropy) |

`run` is traced under `jax.jit`, once for each object: make it at the top of a module. It promises
the operation's documented result, forward and backward, for every call that `refuse` lets pass, so
refuse all options that it does not know: `call.options - {"causal"}`. Options of later versions
are then refused too. For sharded arrays it gets one shard. `dovetail_kernels.testing` has a suite
for each operation.
"""

from dovetail_kernels.attention.call import AttentionCall
from dovetail_kernels.attention.call import Inputs as AttentionInputs
from dovetail_kernels.dispatch import Device, Implementation, Work
from dovetail_kernels.grouped.call import GroupedMatmulCall, GroupedMatmulInputs
from dovetail_kernels.loss.call import LossCall, LossInputs
from dovetail_kernels.paged.call import PagedCall, PagedInputs
from dovetail_kernels.quantized.call import QuantizedMatmulCall, QuantizedMatmulInputs

__all__ = [  # noqa: RUF022, by topic
    # Implementations
    "Implementation",
    "Work",
    "Device",
    # Calls and their arrays
    "AttentionCall",
    "AttentionInputs",
    "PagedCall",
    "PagedInputs",
    "GroupedMatmulCall",
    "GroupedMatmulInputs",
    "QuantizedMatmulCall",
    "QuantizedMatmulInputs",
    "LossCall",
    "LossInputs",
]
