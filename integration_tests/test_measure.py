# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The measuring that all benchmarks share."""

import itertools
import json
import sys

import numpy as np
import pytest

import measure

SCRIPT = "packages/data/benchmarks/pipeline.py"
FIELDS = (
    "case metric unit value minimum spread repeats compile_s peer peer_version peer_value ratio "
)
FIELDS += "noise device cores loadavg python jax commit date command rate"


def test_rounds_run_forth_and_back_and_the_first_is_thrown_away():
    calls, clock = [], itertools.count()
    cases = {name: (lambda x=name: calls.append(x) or next(clock)) for name in "abc"}
    times = measure.rounds(cases, repeats=3)
    assert "".join(calls) == "abccbaabccba"
    assert times == {"a": [5, 6, 11], "b": [4, 7, 10], "c": [3, 8, 9]}


def test_the_line_holds_every_field_and_the_numbers_that_one_computes_by_hand(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(sys, "argv", [str(measure.ROOT / SCRIPT)])
    measure.report(
        "a case",
        metric="wall_s",
        unit="s",
        peer="pytest, numpy",
        rate=12345.6,
        values=[4.0, 1.0, 3.0, 2.0, 10.0],
        peer_values=[2.0, 1.0, 1.0, 4.0, 5.0],
        peer_again=[2.0, 3.0, 1.0, 2.0, 6.0],
    )
    line = json.loads(capsys.readouterr().out)
    assert line.keys() == {*FIELDS.split()}
    # The quartiles of 1 2 3 4 10 are 1.5, 3 and 7.
    assert (line["value"], line["minimum"], line["spread"]) == (3.0, 1.0, 1.833)
    # 2 1 3 0.5 2 for ours, and 1 3 1 0.5 1.2 for the peer itself; the medians' ratio is 1.5.
    assert (line["peer_value"], line["ratio"], line["noise"]) == (2.0, 2.0, 1.0)
    assert (line["repeats"], line["compile_s"], line["rate"]) == (5, None, 12350.0)
    assert line["peer_version"] == f"{pytest.__version__}, {np.__version__}"
    assert line["command"] == f"PYTHONPATH=scripts python {SCRIPT}"
