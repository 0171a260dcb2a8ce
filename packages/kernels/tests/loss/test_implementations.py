# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What the implementations refuse and cost."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

from dovetail_kernels.loss.api import linear_cross_entropy, linear_logprobs
from dovetail_kernels.loss.plan import plan_linear_cross_entropy, plan_linear_logprobs

SHAPES = (
    jax.ShapeDtypeStruct((256, 64), jnp.float32),
    jax.ShapeDtypeStruct((64, 1024), jnp.float32),
    jax.ShapeDtypeStruct((256,), jnp.int32),
)


@pytest.mark.parametrize("plan", [plan_linear_cross_entropy, plan_linear_logprobs])
def test_which_is_chosen(plan):
    choices = plan(*SHAPES).choices()
    assert [(c.name, c.selected, c.refusal) for c in choices] == [
        ("blocked", True, None),
        ("reference", False, None),
    ]


def test_the_reference_is_refused_over_budget():
    size = 2 * 256 * 1024 * 4
    refusal = f"it keeps all logits and their gradient, {size} bytes, and budget={size - 1}"
    plan = plan_linear_cross_entropy(*SHAPES, budget=size - 1, impl="reference")
    assert plan.choices()[1].refusal == refusal
    with pytest.raises(ValueError, match=refusal):
        plan.choose()
    assert plan_linear_cross_entropy(*SHAPES, budget=size, impl="reference").choose()


@pytest.mark.parametrize("impl", ["blocked", "reference"])
@pytest.mark.parametrize("op", [linear_cross_entropy, linear_logprobs])
def test_work_is_what_xla_counts(op, impl):
    """One tile. XLA adds some operations a logit to 128 of the product; bytes within a factor 6,
    as it counts each pass of a fusion over the logits."""
    plan = plan_linear_cross_entropy(*SHAPES, impl=impl)
    work = next(c.work for c in plan.choices() if c.name == impl)
    program = jax.jit(lambda *a: jax.tree.leaves(op(*a, impl=impl))[:2])
    cost = program.lower(*SHAPES).compile().cost_analysis()
    assert 1 <= cost["flops"] / work.flops <= 1.15
    assert 1 <= cost["bytes accessed"] / work.bytes <= 6


def test_peak_bytes_on_a_gpu_are_one_tile_of_logits_and_its_tokens():
    shapes = (jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((8192, 4096), (4096, 131072)))
    labels = jax.ShapeDtypeStruct((8192,), jnp.int32)
    device = AbstractDevice("NVIDIA H200", None, "cuda")
    with use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        work = plan_linear_cross_entropy(*shapes, labels).choices()[0].work
    # The temporary memory that XLA gives one forward call on an H200, jax 0.11.2.
    assert 1090.7e6 / 1.1 < work.peak_bytes < 1090.7e6 * 1.1
