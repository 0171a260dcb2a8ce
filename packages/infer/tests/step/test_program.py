# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The step function lowers for accelerators that are not here."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from dovetail_infer import reference
from dovetail_infer.step.buckets import Bucket
from dovetail_infer.step.layout import discover
from dovetail_infer.step.logits import State
from dovetail_infer.step.program import DeviceState, StepFunction
from dovetail_infer.testing import TinyDecoder

ROWS, PAGE, PAGES, LENGTH = 3, 4, 30, 24


@pytest.mark.capability("steps of the engine", on=("cuda", "tpu"))
@pytest.mark.parametrize("platform", ["cuda", "tpu"])
@pytest.mark.parametrize("kind", ["greedy", "plain", "full", "score"])
def test_lowers_for_accelerators(kind, platform):
    model = TinyDecoder(windows=(None, 5), dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    layout = discover(model, max_length=LENGTH, kv_dtype=jnp.bfloat16)
    graph, state = nnx.split(model)
    leaves, tree = jax.tree.flatten(state)
    function = StepFunction(
        graph=graph,
        tree=tree,
        operations=reference,
        layout=layout,
        columns=LENGTH // PAGE,
        max_rows=ROWS,
        max_logprobs=4,
        adapters=False,
        branches=platform != "cuda",
    )
    pools = [
        jax.ShapeDtypeStruct((PAGES, *layer.page_shape(PAGE)), layer.dtype)
        for layer in layout.layers
    ]
    slots = [
        jax.ShapeDtypeStruct((ROWS, layout.vocab_size), dtype)
        for dtype in (jnp.float32, jnp.bool_, jnp.bool_, jnp.int32)
    ]
    last = jax.ShapeDtypeStruct((ROWS,), jnp.int32)
    bucket = Bucket(tokens=8, rows=ROWS, kind=kind)
    vector = jax.ShapeDtypeStruct((function.packing(bucket).size,), jnp.int32)
    step = jax.jit(function.of(bucket), donate_argnums=1)
    exported = jax.export.export(step, platforms=[platform])(
        tuple(leaves), DeviceState(tuple(pools), last, State(*slots)), vector
    )
    assert exported.platforms == (platform,)
    # Pages keep their dtype, and no row needs those of all requests at once in another.
    pool = f"tensor<{PAGES}x2x{PAGE}x2x8x"
    assert f"{pool}bf16>" in exported.mlir_module()
    assert f"{pool}f32>" not in exported.mlir_module()
    # The host of a GPU would wait at a conditional. Other devices decide by themselves.
    conditional = "stablehlo.case" in exported.mlir_module()
    assert conditional == (platform != "cuda" and kind != "greedy")
    assert "stablehlo.if" not in exported.mlir_module()
