# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Fresh benchmark lines against accepted ones."""

import json
import sys

import pytest

import drift

pytestmark = pytest.mark.once


def line(**fields):
    """A line as measure.report prints it: ours takes half of the peer's time."""
    command = "PYTHONPATH=scripts python packages/data/benchmarks/pipeline.py"
    usual = {"case": "a case", "metric": "cpu_s", "unit": "s", "ratio": 0.5, "peer": "grain"}
    more = {"noise": 1.0, "spread": 0.02, "machine": "x86_64 2 cores", "python": "3.11.7"}
    return {**usual, **more, "commit": "abc1234", "command": command, **fields}


@pytest.mark.parametrize(
    "fields, expected",
    [
        ({"ratio": 0.61}, True),
        ({"ratio": 0.6}, False),
        ({"ratio": 0.41}, False),
        ({"ratio": 0.41, "unit": "B/s"}, True),
        ({"ratio": 0.61, "unit": "B/s"}, False),
        ({"ratio": 0.61, "noise": 0.89}, False),
        ({"ratio": 0.61, "spread": 0.23}, False),
        ({"ratio": 5.0, "machine": "NVIDIA H200"}, False),
        ({"ratio": 5.0, "python": "3.12.1"}, False),
    ],
)
def test_a_ratio_worse_by_more_than_its_band_is_a_row(fields, expected):
    assert bool(drift.worse([line()], [line(**fields)])) == expected


def test_the_command_prints_a_table_and_fails(tmp_path, monkeypatch, capsys):
    results = tmp_path / "packages/data/benchmarks/results"
    results.mkdir(parents=True)
    (results / "pipeline.jsonl").write_text(json.dumps(line()) + "\n")
    fresh = tmp_path / "fresh.jsonl"
    fresh.write_text(json.dumps(line(ratio=0.9)) + "\n")
    monkeypatch.setattr(drift, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["drift.py", "data", str(fresh)])
    assert drift.main() == 1
    row = "| pipeline: a case | cpu_s | 0.5 | 0.9 | ± 20% | abc1234 |"
    assert row in capsys.readouterr().out
