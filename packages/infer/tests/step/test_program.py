# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The step function lowers for accelerators that are not here."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from dovetail_infer import reference
from dovetail_infer.step.buckets import Bucket
from dovetail_infer.testing import TinyDecoder, traceable_step

ROWS, PAGE, LENGTH = 3, 4, 24


@pytest.mark.parametrize("kind", ["greedy", "plain", "full", "score"])
def test_the_draw_has_a_scope_and_the_model_is_outside(kind):
    step, given = traceable_step(
        TinyDecoder(rngs=nnx.Rngs(0)),
        Bucket(tokens=8, rows=ROWS, kind=kind),
        operations=reference,
        max_length=LENGTH,
        page_size=PAGE,
    )
    scopes: dict[bool, set[str]] = {True: set(), False: set()}
    for equation in jax.make_jaxpr(step)(*given).eqns:
        inside = str(equation.source_info.name_stack).startswith("sampling")
        scopes[inside].add(equation.primitive.name)
    assert scopes[True]
    assert "dot_general" in scopes[False] - scopes[True]
    lowered = jax.jit(step).lower(*given).as_text(debug_info=True)
    assert "/sampling/" in lowered


@pytest.mark.capability("steps of the engine", on=("cuda", "tpu"))
@pytest.mark.parametrize(("platform", "single"), [("cuda", True), ("cuda", False), ("tpu", False)])
@pytest.mark.parametrize("kind", ["greedy", "plain", "full", "score"])
def test_lowers_for_accelerators(kind, platform, single):
    options = {"windows": (None, 5), "dtype": jnp.bfloat16}
    model = nnx.eval_shape(lambda: TinyDecoder(**options, rngs=nnx.Rngs(0)))
    step, given = traceable_step(
        model,
        Bucket(tokens=ROWS if single else 8, rows=ROWS, kind=kind, single=single),
        operations=reference,
        max_length=LENGTH,
        page_size=PAGE,
        max_logprobs=4,
        branches=platform != "cuda",
    )
    exported = jax.export.export(jax.jit(step, donate_argnums=1), platforms=[platform])(*given)
    assert exported.platforms == (platform,)
    # Pages keep their dtype, and no row needs those of all requests at once in another.
    pool = f"tensor<{ROWS * LENGTH // PAGE}x2x{PAGE}x2x8x"
    assert f"{pool}bf16>" in exported.mlir_module()
    assert f"{pool}f32>" not in exported.mlir_module()
    # The host of a GPU would wait at a conditional. Other devices decide by themselves.
    conditional = "stablehlo.case" in exported.mlir_module()
    assert conditional == (platform != "cuda" and kind != "greedy")
    assert "stablehlo.if" not in exported.mlir_module()
