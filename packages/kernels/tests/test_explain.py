# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The report of a choice, on an operation made for it."""

import sys
import types

import jax
import jax.numpy as jnp
import pytest

from dovetail_kernels import (
    Explanation,
    attention,
    explain,
    linear_logprobs,
    pack_weights,
    quantized_matmul,
    rms_norm,
    rope,
)
from dovetail_kernels.dispatch import Device, Implementation, Plan, Work

MODULE = sys.modules["dovetail_kernels.explain"]  # its name in the package is the function's


def toy(x, *, hard=False):
    """An operation that no test runs."""


def plan_toy(x, *, hard=False):
    def one(name, refusal, flops):
        return Implementation(
            name=name,
            refuse=lambda call: refusal if call.hard else None,
            work=lambda call: Work(flops=flops * call.x, bytes=4 * call.x, peak_bytes=2 * call.x),
            run=toy,
        )

    return Plan(
        operation="toy",
        call=types.SimpleNamespace(x=x, hard=hard, precision="products in float32"),
        device=Device(platform="cpu", kind="Zen"),
        implementations=(one("quick", "cannot do hard calls", 1), one("sure", None, 1000)),
        impl=None,
    )


@pytest.fixture(autouse=True)
def _listed(monkeypatch):
    monkeypatch.setitem(MODULE._PLANS, toy, plan_toy)


def test_a_report_is_a_table():
    report = explain(toy, 2_500_000)
    assert isinstance(report, Explanation)
    assert report.selected == "quick"
    assert str(report) == (
        "toy on cpu (Zen), products in float32\n"
        "  quick  0.0025 GFLOP  10 MB  peak 5 MB  selected: first able, in order of preference\n"
        "  sure      2.5 GFLOP  10 MB  peak 5 MB  able, after quick"
    )


def test_a_refusal_is_told_without_figures():
    assert str(explain(toy, 1000, hard=True)).splitlines() == [
        "toy on cpu (Zen), products in float32",
        "  quick                                        cannot do hard calls",
        "  sure   0.001 GFLOP  0.004 MB  peak 0.002 MB  "
        "selected: first able, in order of preference",
    ]


def test_something_else_is_refused():
    message = r"needs an operation of dovetail_kernels, got <built-in .* one of .*toy"
    with pytest.raises(ValueError, match=message):
        explain(print, 1)


def shape(*sizes, dtype="float32"):
    return jax.ShapeDtypeStruct(sizes, dtype)


@pytest.mark.thorough
def test_the_precision_is_that_of_the_arguments():
    def precision(dtype):
        q = shape(1, 8, 2, 16, dtype=dtype)
        return explain(attention, q, q, q).precision

    assert precision("float32") == "products in float32"
    assert precision("bfloat16") == "products of bfloat16, sums in float32"
    with jax.default_matmul_precision("tensorfloat32"):
        assert "tensorfloat32" in precision("float32")
        # Quantized products are in float32 under any setting.
        x, w = shape(3, 64, dtype="bfloat16"), pack_weights(jnp.ones((64, 8)), bits=8)
        assert explain(quantized_matmul, x, w).precision == "products in float32"


def test_an_operation_with_one_implementation_is_one_line():
    report = explain(rope, shape(4, 100, 8, 64), shape(100, dtype="int32"), theta=1e4)
    assert [(c.name, c.reason) for c in report.rows] == [("jnp", "selected: the only one")]
    # x is read and written, and so are the positions once.
    assert report.rows[0].work.bytes == 2 * 4 * 4 * 100 * 8 * 64 + 4 * 100
    assert str(report).startswith(f"rope on cpu ({jax.devices()[0].device_kind})\n  jnp")


def test_the_checks_of_such_an_operation_come_first():
    with pytest.raises(ValueError, match="rope needs theta"):
        explain(rope, shape(4, 100, 8, 64), shape(100, dtype="int32"))


def test_options_are_those_of_the_operation():
    x, w, labels = shape(3, 4), shape(4, 7), shape(3, dtype="int32")
    assert explain(linear_logprobs, x, w, labels, temperature=0.5).selected == "blocked"
    with pytest.raises(TypeError, match="smoothing"):
        explain(linear_logprobs, x, w, labels, smoothing=0.1)


def test_a_call_is_lowered_for_the_devices_that_are_given():
    x = jnp.ones((3, 64))
    report = explain(quantized_matmul, x, w=pack_weights(jnp.ones((64, 8)), bits=8))
    lowered = report.lower(jax.devices())
    assert [(a.shape, str(a.dtype)) for a in jax.tree.leaves(lowered.in_avals)] == [
        ((3, 64), "float32"),
        ((8, 64), "int8"),
        ((8, 1), "float32"),
    ]
    assert f"quantized_matmul/{report.selected}" in lowered.as_text(debug_info=True)
    assert lowered.out_info.shape == (3, 8)
    # The report may be pickled to another process, and keeps no array.
    assert not [a for a in jax.tree.leaves(vars(report.call)) if isinstance(a, jax.Array)]


def test_names_of_other_libraries_are_answered():
    q = shape(1, 8, 2, 16)
    with pytest.raises(TypeError, match=r"has no argument is_causal.* Use causal=True"):
        explain(attention, q, q, q, is_causal=True)
    with pytest.raises(TypeError, match=r"has no argument epsilon.* Use eps=1e-05"):
        explain(rms_norm, q, None, epsilon=1e-5)
