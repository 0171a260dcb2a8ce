# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The sweep with given times: who wins, and who is left out. No test depends on a clock."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import pytest

from dovetail_kernels import (
    attention,
    explain,
    grouped_matmul,
    pack_weights,
    quantized_matmul,
    record_calls,
    tune,
    tuning,
)
from dovetail_kernels.quantized.api import IMPLEMENTATIONS
from dovetail_kernels.sweep import tune as module
from dovetail_kernels.sweep.tune import measure


def shape(*sizes, dtype="float32"):
    return jax.ShapeDtypeStruct(sizes, dtype)


def recorded(op, *args):
    with record_calls() as calls:
        jax.eval_shape(op, *args)
    return calls[0]


# "blocks", "reference" and "scaled" can all do it, and "blocks" comes first.
GROUPS = pack_weights(jnp.ones((64, 32)), bits=8, group_size=32)


@pytest.fixture(scope="module")
def call():
    return recorded(lambda x: quantized_matmul(x, GROUPS), shape(3, 64))


class Timer:
    """Given seconds by name, a list of them in turn."""

    def __init__(self, **seconds):
        self.seconds, self.asked = seconds, []

    def __call__(self, name, run):
        self.asked.append(name)
        values = self.seconds[name]
        if isinstance(values, float):
            return values
        return values[(self.asked.count(name) - 1) % len(values)]


def decided(call, **seconds):
    """The decision for times of two passes, each a list of rounds, by implementation."""
    times = {
        step: {name: rounds[i] for name, rounds in seconds.items()}
        for i, step in enumerate(("forward", "gradients"))
    }
    for by_name in times.values():
        by_name["blocks again"] = by_name.pop("again", by_name["blocks"])
    return module._decided(call, "blocks", times, {})


def around(seconds, spread=0.0):
    return [seconds * (1 + spread * i) for i in (-3, -2, -1, 0, 1, 2, 3)]


def test_the_faster_wins_with_its_figures(call):
    row = decided(
        call,
        blocks=(around(0.002), around(0.004)),
        reference=(around(0.001), around(0.0025)),
        scaled=(around(0.001), around(0.003)),
    )
    assert (row.implementation, row.default) == ("reference", "blocks")
    assert row.ms["reference"] == pytest.approx({"forward": 1.0, "gradients": 2.5})
    assert (row.runner_up, row.ratio) == ("scaled", pytest.approx(1.2))
    assert row.reason == "2.5 ms against 4 of blocks"


@pytest.mark.parametrize(
    "blocks, reference, winner",
    [
        ((0.002, 0.004), (0.002, 0.0039), "reference"),  # no spread: any gain is one
        ((0.002, 0.004), (0.002, 0.004), "blocks"),
        ((0.002, 0.004), (0.0021, 0.002), "blocks"),  # a slower forward pass
        ((0.002, 0.004), (0.001, 0.0041), "blocks"),  # or slower gradients
    ],
)
def test_both_passes_count(call, blocks, reference, winner):
    row = decided(call, blocks=tuple(map(around, blocks)), reference=tuple(map(around, reference)))
    assert row.implementation == winner


@pytest.mark.parametrize(
    "own, other, again, winner",
    [
        # The quartiles of 7 rounds of spread s are 4 s apart.
        (0.0, 0.0, 1.0, "reference"),
        (0.03, 0.0, 1.0, "blocks"),  # the default's rounds differ by 12 %
        (0.0, 0.03, 1.0, "blocks"),  # the other's do
        (0.0, 0.0, 1.12, "blocks"),  # the default differs from itself
        (0.02, 0.02, 1.08, "reference"),  # all by less than the gain of 10 %
    ],
)
def test_a_gain_within_the_spread_is_none(call, own, other, again, winner):
    flat = around(0.001)
    row = decided(
        call,
        blocks=(flat, around(0.004, own)),
        reference=(flat, around(0.0036, other)),
        again=(flat, around(0.004 * again)),
    )
    assert row.implementation == winner
    if winner == "blocks":
        assert row.reason == "4 ms, and no other is faster by more than the spread"


def test_rounds_are_interleaved_and_the_default_runs_twice_in_each(call):
    timer = Timer(blocks=0.002, reference=0.001, scaled=0.003)
    row = measure(call, timer=timer)
    assert row.implementation == "reference"
    assert row.excluded.keys() == {"scaled"} - row.ms.keys()
    one_round = [*row.ms, "blocks"]
    assert timer.asked == one_round * module._ROUNDS


def broken(name, run):
    return dataclasses.replace(IMPLEMENTATIONS[name], run=run)


def fails(call, inputs):
    raise RuntimeError("no such instruction\nat line 3")


def test_a_wrong_answer_is_left_out_by_name(call, monkeypatch):
    def off(call, inputs):
        right = IMPLEMENTATIONS["reference"].run(call, inputs)
        return right.at[2, 5].multiply(1.001)

    monkeypatch.setitem(IMPLEMENTATIONS, "blocks", broken("blocks", off))
    row = measure(call, timer=Timer(blocks=0.001, reference=0.002, scaled=0.002))
    # And if it would run by default, the file changes nothing: the reader sees the reason.
    assert (row.implementation, row.default, row.ms) == ("blocks", "blocks", {})
    assert row.excluded["blocks"].startswith("differs from reference: off by ")
    assert row.reason.startswith("blocks stays, not measured: differs from reference")


def test_one_that_fails_is_left_out_by_its_error(call, monkeypatch):
    monkeypatch.setitem(IMPLEMENTATIONS, "reference", broken("reference", fails))
    row = measure(call, timer=Timer(blocks=0.002, scaled=0.001))
    assert row.excluded["reference"] == "RuntimeError: no such instruction"
    assert "blocks" in row.ms


@pytest.mark.thorough
def test_larger_temporaries_are_no_gain():
    call = recorded(grouped_matmul, shape(40, 16), shape(4, 16, 9), shape(4, dtype="int32"))
    row = measure(call, timer=Timer(tiles=0.002))
    # Arguments and results have 4 * (40 * 16 + 4 * 16 * 9 + 40 * 9 + 4) bytes, more than "tiles".
    assert row.excluded.keys() == {"ragged_dot", "reference"}
    assert row.excluded["reference"] == "needs 11520 bytes for temporaries, above 7776"
    assert row.implementation == "tiles"


def test_without_time_or_calls():
    q = shape(1, 8, 2, 4)
    call = recorded(attention, q, q, q)
    tuned = tune([call], budget_s=0.0)
    assert tuned.rows == ()
    assert tuned.notes == ("attention is not measured: budget_s=0 was spent",)
    with pytest.raises(ValueError, match=r"tune needs calls, got none\. Trace a program"):
        tune([])


@pytest.mark.thorough
def test_a_sweep_writes_a_file_that_dispatch_reads(tmp_path):
    q = shape(1, 48, 2, 16)
    calls = [
        recorded(attention, q, q, q),
        recorded(lambda x: quantized_matmul(x, GROUPS), shape(3, 64)),
    ]
    seen = []
    tuned = tune(calls, out=tmp_path / "tuned.json", progress=seen.append)
    assert [row.operation for row in seen] == ["attention", "quantized_matmul"]
    assert [row.operation for row in tuned.rows] == ["attention", "quantized_matmul"]
    assert [*tmp_path.iterdir()] == [tmp_path / "tuned.json"]
    assert json.loads((tmp_path / "tuned.json").read_text()) == tuned.json()
    for row in tuned.rows:
        assert row.implementation in row.ms
        assert not [reason for reason in row.excluded.values() if "needs" not in reason]
        assert all(ms > 0 for times in row.ms.values() for ms in times.values())
    passes = [list(row.ms[row.default]) for row in tuned.rows]
    assert passes == [["forward", "gradients"], ["forward"]]
    with tuning(tmp_path / "tuned.json"):
        report = explain(attention, q, q, q)
    assert report.selected == tuned.rows[0].implementation
    assert "selected: measured, " in str(report)
