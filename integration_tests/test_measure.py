# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The measuring that all benchmarks share, and that of chained operations on a device."""

import itertools
import json
import sys
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import device_timing
import measure
from device_timing import Contest, chained

ROWS = np.arange(6, dtype=np.float32).reshape(2, 3)
SCRIPT = "packages/data/benchmarks/pipeline.py"
FIELDS = """case metric unit value minimum spread repeats compile_s peer peer_version peer_value
    ratio noise device cores loadavg python jax commit date command rate"""


def test_rounds_run_forth_and_back_and_the_first_is_thrown_away():
    calls, clock = [], itertools.count()
    cases = {name: (lambda x=name: calls.append(x) or next(clock)) for name in "abc"}
    times = measure.rounds(cases, repeats=3)
    assert "".join(calls) == "abccbaabccba"
    assert times == {"a": [5, 6, 11], "b": [4, 7, 10], "c": [3, 8, 9]}


def test_the_line_holds_every_field_and_numbers_computed_by_hand(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(measure.ROOT / SCRIPT)])
    names = {"metric": "wall_s", "unit": "s", "peer": "pytest, numpy", "rate": 12345.6}
    again = {"peer_values": [2.0, 1.0, 1.0, 4.0, 5.0], "peer_again": [2.0, 3.0, 1.0, 2.0, 6.0]}
    measure.report("a case", **names, values=[4.0, 1.0, 3.0, 2.0, 10.0], **again)
    line = json.loads(capsys.readouterr().out)
    assert line.keys() == {*FIELDS.split()}
    # The quartiles of 1 2 3 4 10 are 1.5, 3 and 7.
    assert (line["value"], line["minimum"], line["spread"]) == (3.0, 1.0, 1.833)
    # 2 1 3 0.5 2 for ours, and 1 3 1 0.5 1.2 for the peer itself; the medians' ratio is 1.5.
    assert (line["peer_value"], line["ratio"], line["noise"]) == (2.0, 2.0, 1.0)
    assert (line["repeats"], line["compile_s"], line["rate"]) == (5, None, 12350.0)
    assert line["peer_version"] == f"{pytest.__version__}, {np.__version__}"
    assert line["command"] == f"PYTHONPATH=scripts python {SCRIPT}"


@pytest.fixture
def lines(monkeypatch, capsys):
    """The lines that a contest prints, as a step of the session would."""
    monkeypatch.setattr(sys, "argv", [str(measure.ROOT / "scripts" / "accelerator"), "toy.x"])

    def measured(**options: Any) -> list[dict[str, Any]]:
        given = {"case": "twice", "ours": lambda x: 2 * x, "chain": 3, **options}
        Contest(**given, inputs=lambda: (jnp.asarray(ROWS),)).measure()
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return measured


def test_a_chain_makes_every_call():
    seen = []

    def function(x):
        io_callback(lambda: seen.append(1), None)
        return {"a": x[::-1], "b": x.sum(), "none": x[:0]}

    # The first elements of the reversed rows and of the sum, five times.
    assert float(chained(function, 5)(jnp.asarray(ROWS))) == 5 * (3 + 15)
    assert len(seen) == 5


def test_a_line_has_the_peer_its_noise_and_the_rates(lines, monkeypatch):
    monkeypatch.setattr(device_timing, "peaks", lambda dtype: (1e30, 1e30))

    def refuses(x):
        raise NotImplementedError("not on this device")

    peers, bounds = {"absent": refuses, "sum": lambda x: x + x}, {"a copy": lambda x: x + 1}
    absent, line, bound = lines(peers=peers, bounds=bounds, flops=6.0, nbytes=48.0)
    assert (absent["peer"], absent["peer_value"]) == ("absent", None)
    assert absent["peer_error"] == "NotImplementedError: not on this device"
    assert bound["peer"] == "a copy"  # timed, whatever its result
    assert bound["peer_value"] > 0
    assert (line["case"], line["peer"], line["chain"]) == ("twice, against sum", "sum", 3)
    assert min(line["ratio"], line["noise"]) > 0
    assert line["flops_per_s"] == pytest.approx(6 / line["value"], rel=1e-2)
    assert line["bytes_share_of_peak"] == pytest.approx(48 / line["value"] / 1e30, rel=1e-2)
    monkeypatch.setattr(device_timing, "peaks", lambda dtype: (1e-3, None))
    with pytest.raises(RuntimeError, match="left out a part of the chain"):
        lines(flops=6.0)


@pytest.mark.parametrize("other", [lambda x: 2.1 * x, lambda x: x * jnp.nan])
def test_another_result_is_no_measurement(lines, other):
    with pytest.raises(RuntimeError, match="differs from wrong by"):
        lines(peers={"wrong": other})
