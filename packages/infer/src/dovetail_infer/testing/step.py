# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The step of an engine without the engine, to trace and compile for devices that are not here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from dovetail_infer.step.buckets import Bucket
from dovetail_infer.step.layout import discover
from dovetail_infer.step.logits import State
from dovetail_infer.step.program import DeviceState, StepFunction
from dovetail_infer.types import Decoder, Operations


def traceable_step(
    model: Decoder,
    bucket: Bucket,
    *,
    operations: Operations,
    max_length: int,
    page_size: int,
    max_logprobs: int = 0,
    branches: bool = False,
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Returns the step function of a bucket, with a cache in bfloat16, and what it takes.

    Args:
        model: The decoder, with or without arrays.
        bucket: Size of the step. Its rows are all slots of the engine.
        operations: The hot operations.
        max_length: Largest number of tokens of a request. The cache holds it for each row.
        page_size: Tokens of a page.
        max_logprobs: Number of likeliest tokens of the kinds "full" and "score".
        branches: As in `StepFunction`. False for a GPU.

    Returns:
        The function (parameters, state, vector) -> (state, outputs), which donates the state, and
        its arguments: the model's leaves, and shapes.
    """
    layout = discover(model, max_length=max_length, kv_dtype=jnp.bfloat16)
    graph, state = nnx.split(model)
    leaves, tree = jax.tree.flatten(state)
    columns = -(-max_length // page_size)
    function = StepFunction(
        graph=graph,
        tree=tree,
        operations=operations,
        layout=layout,
        columns=columns,
        max_rows=bucket.rows,
        max_logprobs=max_logprobs,
        adapters=False,
        branches=branches,
    )
    shape: Any = jax.ShapeDtypeStruct  # stands for an array
    pools = [
        shape((bucket.rows * columns, *x.page_shape(page_size)), x.dtype) for x in layout.layers
    ]
    kinds = (jnp.float32, jnp.bool_, jnp.bool_, jnp.int32)
    slots = State(*(shape((bucket.rows, layout.vocab_size), kind) for kind in kinds))
    given = DeviceState(tuple(pools), shape((bucket.rows,), jnp.int32), slots)
    vector = shape((function.packing(bucket).size,), jnp.int32)
    return function.of(bucket), (tuple(leaves), given, vector)
