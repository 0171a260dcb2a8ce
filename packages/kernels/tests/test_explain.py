# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The report of a choice, on an operation made for it."""

import sys

import pytest

from dovetail_kernels import Explanation, explain
from dovetail_kernels.dispatch import Device, Implementation, Plan, Work

MODULE = sys.modules["dovetail_kernels.explain"]  # its name in the package is the function's


def toy(x, *, hard=False):
    """An operation that no test runs."""


def plan_toy(x, *, hard=False):
    def one(name, refusal, flops):
        return Implementation(
            name=name,
            refuse=lambda call: refusal if call["hard"] else None,
            work=lambda call: Work(flops=flops * call["x"], bytes=4 * call["x"]),
            run=toy,
        )

    return Plan(
        operation="toy",
        call={"x": x, "hard": hard},
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
        "toy on cpu (Zen)\n  quick  0.0025 GFLOP  10 MB  selected\n"
        "  sure      2.5 GFLOP  10 MB  able"
    )


def test_a_refusal_is_told_without_figures():
    assert str(explain(toy, 1000, hard=True)).splitlines() == [
        "toy on cpu (Zen)",
        "  quick                         cannot do hard calls",
        "  sure   0.001 GFLOP  0.004 MB  selected",
    ]


def test_something_else_is_refused():
    message = r"needs an operation that has implementations.* got <built-in .* one of .*toy"
    with pytest.raises(ValueError, match=message):
        explain(print, 1)
