# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Implementations of a caller, in every operation that has implementations."""

import dataclasses
import functools

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from dovetail_kernels import (
    attention,
    explain,
    grouped_matmul,
    implementations,
    linear_cross_entropy,
    linear_logprobs,
    pack_weights,
    paged_attention,
    quantized_matmul,
)
from dovetail_kernels.attention.reference import REFERENCE as ATTENTION
from dovetail_kernels.grouped.reference import REFERENCE as GROUPED
from dovetail_kernels.loss.implementations import CROSS_ENTROPY, LOG_PROBABILITIES
from dovetail_kernels.paged.reference import REFERENCE as PAGED
from dovetail_kernels.quantized.api import IMPLEMENTATIONS as QUANTIZED


def _normal(*shape):
    return jax.random.normal(jax.random.key(len(shape) + shape[0]), shape)


_Q = _normal(2, 7, 4, 8)
_LOSS = _normal(9, 8), _normal(8, 30), jnp.arange(9)
_PAGES = _normal(5, 2, 4, 1, 8)
_NUMBERS = {
    "page_table": jnp.array([[1, 0], [3, 2]], jnp.int32),
    "kv_lengths": jnp.array([3, 7], jnp.int32),
    "q_starts": jnp.array([0, 1, 3], jnp.int32),
}
# The operation, an implementation of the package with another name, and a call.
CASES = {
    "attention": (attention, ATTENTION, (_Q, _Q, _Q), {"causal": True}),
    "paged_attention": (paged_attention, PAGED, (_normal(3, 2, 8), _PAGES), _NUMBERS),
    "grouped_matmul": (
        grouped_matmul,
        GROUPED,
        (_normal(9, 8), _normal(2, 8, 5), jnp.array([4, 5])),
        {},
    ),
    "quantized_matmul": (
        quantized_matmul,
        QUANTIZED["reference"],
        (_normal(9, 8), pack_weights(_normal(8, 5), bits=8)),
        {"activations": "int8"},
    ),
    "linear_cross_entropy": (linear_cross_entropy, CROSS_ENTROPY[1], _LOSS, {"smoothing": 0.1}),
    "linear_logprobs": (linear_logprobs, LOG_PROBABILITIES[1], _LOSS, {"temperature": 2.0}),
}


@functools.cache
def own(name, refusal=None):
    """The caller's implementation: the formula of the package, with a refusal of its own."""
    return dataclasses.replace(CASES[name][1], name="mine", refuse=lambda call: refusal)


@pytest.mark.parametrize("name", CASES)
def test_it_computes_the_call(name):
    op, package, args, options = CASES[name]
    results = op(*args, **options, impl=own(name))
    expected = op(*args, **options, impl=package.name)
    for result, formula in zip(jax.tree.leaves(results), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(result, formula)


@pytest.mark.parametrize("name", CASES)
def test_explain_lists_it(name):
    op, _, args, options = CASES[name]
    mine = own(name)
    report = explain(op, *args, **options, impl=[mine, "reference"])
    assert report.selected == "mine"
    (formula,) = (choice for choice in report.rows if choice.name == "reference")
    assert report.rows[0].work == formula.work is not None
    without = explain(op, *args, **options)
    assert "mine" not in [choice.name for choice in without.rows]


@pytest.mark.parametrize("name", CASES)
def test_its_refusal_is_reported(name):
    op, _, args, options = CASES[name]
    mine = own(name, "it is shy")
    with pytest.raises(ValueError, match="impl='mine' on cpu: mine: it is shy"):
        op(*args, **options, impl=mine)
    report = explain(op, *args, **options, impl=[mine, "reference"])
    assert (report.selected, report.rows[0].reason) == ("reference", "it is shy")


@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
def test_eager_calls_compile_once_for_each_object(name, uncached):
    op, _, args, options = CASES[name]
    compilations = []

    def listen(event, duration, **kwargs):
        if "backend_compile" in event:
            compilations.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        op(*args, **options, impl=own(name))
        compilations.clear()
        op(*args, **options, impl=own(name))
        assert not compilations
        op(*args, **options, impl=dataclasses.replace(own(name), name="another"))
        assert compilations
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.thorough
def test_a_shard_s_call_has_the_shapes_of_its_arrays(traced_anew):
    calls = []

    def run(call, inputs):
        calls.append((call.batch, call.heads, inputs.q.shape))
        return ATTENTION.run(call, inputs)

    mine = dataclasses.replace(ATTENTION, name="mine", run=run)
    mesh = AbstractMesh((2, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
    sharding = NamedSharding(mesh, PartitionSpec("x", None, "y"))
    q = jax.ShapeDtypeStruct((4, 7, 6, 8), jnp.float32, sharding=sharding)
    with jax.sharding.use_abstract_mesh(mesh):
        jax.eval_shape(functools.partial(attention, impl=mine), q, q, q)
    assert calls == [(2, 3, (2, 7, 3, 8))]


@pytest.mark.parametrize(
    "name, options",
    [
        ("attention", {"causal"}),
        ("paged_attention", set()),
        ("grouped_matmul", set()),
        ("quantized_matmul", {"activations"}),
        ("linear_cross_entropy", {"smoothing"}),
        ("linear_logprobs", {"temperature"}),
    ],
)
def test_a_call_names_its_options(name, options):
    op, package, args, given = CASES[name]
    seen = []
    mine = dataclasses.replace(package, name="mine", refuse=lambda call: seen.append(call.options))
    explain(op, *args, **given, impl=mine)
    assert set(seen) == {frozenset(options)}


def test_the_public_place_has_every_class_of_the_table():
    for name in implementations.__all__:
        assert name in implementations.__doc__ or name in ("Work", "Device")
        assert isinstance(getattr(implementations, name), type)
