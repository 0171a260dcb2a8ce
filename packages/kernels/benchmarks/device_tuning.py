# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A sweep by `dovetail_kernels.tune` over three calls, as a program records them."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from dovetail_kernels import (
    TunedCall,
    attention,
    grouped_matmul,
    pack_weights,
    quantized_matmul,
    record_calls,
    tune,
)
from measure import report


def sweep(rows: Sequence[int], experts: Sequence[int], weights: Sequence[int]) -> None:
    """Packed attention, a product of experts, and one of int8; a line for each winner.

    Args:
        rows: Batch, length, heads and head_dim of attention.
        experts: Experts, rows, width and outputs of a grouped product.
        weights: Rows, inputs and outputs of a quantized product.
    """
    shape = jax.ShapeDtypeStruct
    q, ids = shape(tuple(rows), "bfloat16"), shape(tuple(rows[:2]), "int32")
    count, tokens, width, out = experts
    x, w = shape((tokens, width), "bfloat16"), shape((count, width, out), "bfloat16")
    packed = pack_weights(jnp.ones(tuple(weights[1:])), bits=8)
    with record_calls() as calls:
        jax.eval_shape(lambda q, ids: attention(q, q, q, causal=True, segment_ids=ids), q, ids)
        jax.eval_shape(grouped_matmul, x, w, shape((count,), "int32"))
        rounded = shape(tuple(weights[:2]), "bfloat16")
        jax.eval_shape(lambda x: quantized_matmul(x, packed), rounded)
    tune(calls, progress=_say)


def _say(row: TunedCall) -> None:
    if row.ms:
        last = list(row.ms[row.default])[-1]
        report(
            f"tuned {row.operation}: {row.implementation}",
            metric="wall_s",
            unit="s",
            values=[row.ms[row.implementation][last] / 1e3],
            peer=f"{row.default}, the default",
            peer_values=[row.ms[row.default][last] / 1e3],
            excluded=row.excluded,
        )
