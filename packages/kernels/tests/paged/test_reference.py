# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The formula: right in every case, gradients too, and its work as XLA counts it."""

import jax
import jax.numpy as jnp
import pytest

from dovetail_kernels.paged.api import plan_paged_attention
from dovetail_kernels.paged.call import PagedInputs
from dovetail_kernels.paged.reference import REFERENCE
from dovetail_kernels.testing.paged import cases, check

pytestmark = pytest.mark.thorough


def without_refusal(q, pages, *, page_table, kv_lengths, q_starts, sinks=None, **options):
    numbers = {"page_table": page_table, "kv_lengths": kv_lengths, "q_starts": q_starts}
    plan = plan_paged_attention(q, pages, **numbers, sinks=sinks, **options)
    return REFERENCE.run(plan.call, PagedInputs(q, pages, *numbers.values(), sinks))


def test_gradients_of_the_formula():
    check(jax.jit(without_refusal), next(case for case in cases() if case.name == "chunk"))


def test_work():
    numbers = {"page_table": (2, 6), "kv_lengths": (2,), "q_starts": (3,)}
    numbers = {name: jax.ShapeDtypeStruct(shape, jnp.int32) for name, shape in numbers.items()}
    q = jax.ShapeDtypeStruct((9, 8, 32), jnp.float32)
    pages = jax.ShapeDtypeStruct((20, 2, 16, 2, 32), jnp.float32)
    plan = plan_paged_attention(q, pages, **numbers, impl="reference")
    work = plan.choose().work(plan.call)
    inputs = PagedInputs(q, pages, *numbers.values(), None)
    run = jax.jit(REFERENCE.run, static_argnums=0)
    cost = run.lower(plan.call, inputs).compile().cost_analysis()
    assert work.flops == 4 * 9 * 8 * 32 * 96
    # XLA counts the softmax and the masks too.
    assert work.flops <= cost["flops"] <= 1.5 * work.flops
    assert 0.5 * work.bytes <= cost["bytes accessed"] <= 2 * work.bytes
