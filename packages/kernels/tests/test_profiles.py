# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Names of operations and implementations in the metadata of programs, forward and backward."""

import re

import jax
import jax.numpy as jnp
import pytest

from dovetail_kernels import (
    PackedWeights,
    attention,
    grouped_matmul,
    linear_cross_entropy,
    linear_logprobs,
    paged_attention,
    quantized_matmul,
    rms_norm,
    sample,
)


def _shape(*sizes, dtype="float32"):
    return jax.ShapeDtypeStruct(sizes, dtype)


def _integers(*sizes):
    return _shape(*sizes, dtype="int32")


def _attention(q, k, v):
    return attention(q, k, v, impl="reference").sum()


def _quantized(x, values, scales):
    packed = PackedWeights(values=values, scales=scales, zeros=None, bits=8)
    return quantized_matmul(x, packed, impl="blocks").sum()


_Q = _shape(1, 9, 2, 8)
_LOSS = _shape(9, 8), _shape(8, 30), _integers(9)
DIFFERENTIABLE = {
    "attention/blocked": (lambda *a: attention(*a).sum(), (_Q,) * 3),
    "attention/reference": (_attention, (_Q,) * 3),
    "linear_cross_entropy/blocked": (lambda *a: linear_cross_entropy(*a).sum, _LOSS),
    "linear_logprobs/blocked": (lambda *a: linear_logprobs(*a).logprob.sum(), _LOSS),
    "grouped_matmul/tiles": (
        lambda *a: (grouped_matmul(*a) ** 2).sum(),
        (_shape(9, 8), _shape(2, 8, 5), _integers(2)),
    ),
    "quantized_matmul/blocks": (
        lambda *a: _quantized(*a) ** 2,
        (_shape(9, 8), _shape(5, 8, dtype="int8"), _shape(5, 1)),
    ),
    "rms_norm": (lambda x: rms_norm(x, None, eps=1e-6).sum(), (_shape(9, 8),)),
}


def places(function, *shapes):
    """The places of operations in a program, as profiles show them."""
    return re.findall(r'"(jit\([^"]*)"', jax.jit(function).lower(*shapes).as_text(debug_info=True))


def has_names(place, names):
    """JAX wraps the first of them: jvp(attention)/blocked, or jvp(jit(_run))/attention/blocked."""
    return re.search(r"\b" + names.replace("/", r"\)*/") + r"\b", place) is not None


@pytest.mark.parametrize("names", DIFFERENTIABLE)
def test_forward_and_backward_have_the_names(names):
    function, shapes = DIFFERENTIABLE[names]
    forward = places(function, *shapes)
    assert any(has_names(place, names) for place in forward)
    both = places(jax.value_and_grad(function), *shapes)
    assert any(has_names(place, names) and "transpose" not in place for place in both)
    # The gradient of a quantized product is that of the operation, for every implementation.
    backward = "quantized_matmul" if names == "quantized_matmul/blocks" else names
    assert any(has_names(place, backward) and "transpose" in place for place in both)


@pytest.mark.thorough
def test_operations_without_gradients_have_the_names():
    shapes = _shape(3, 2, 8), _shape(5, 2, 4, 1, 8), _integers(2, 3), _integers(2), _integers(3)

    def attend(q, pages, table, lengths, starts):
        return paged_attention(q, pages, page_table=table, kv_lengths=lengths, q_starts=starts)

    assert any(has_names(place, "paged_attention/gather") for place in places(attend, *shapes))
    keys = jax.random.split(jax.random.key(0), 3)
    drawn = places(lambda logits: sample(logits, keys=keys), _shape(3, 50))
    assert any(has_names(place, "sample") for place in drawn)


def test_an_eager_call_has_the_names_too():
    from dovetail_kernels.attention.api import _run
    from dovetail_kernels.attention.plan import plan_attention

    q = jnp.ones((1, 9, 2, 8))
    plan = plan_attention(q, q, q)
    lowered = _run.lower(plan.choose(), plan.call, q, q, q, *[None] * 8)
    assert "attention/blocked" in lowered.as_text(debug_info=True)
