# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Fresh benchmark lines against accepted ones."""

import json
import sys

import pytest

import drift

pytestmark = pytest.mark.once

HERE, THERE = "x86_64 avx2 2 cores", "NVIDIA H200"


def line(case="a case", **fields):
    """A line as measure.report prints it: ours takes half of the peer's time."""
    command = "PYTHONPATH=scripts python packages/data/benchmarks/pipeline.py"
    usual = {"metric": "cpu_s", "unit": "s", "value": 1.0, "ratio": 0.5, "peer": "grain"}
    more = {"noise": 1.0, "spread": 0.02, "machine": HERE, "python": "3.11.7"}
    return {"case": case, **usual, **more, "commit": "abc1234", "command": command, **fields}


def counts(accepted, fresh):
    """How many ratios got worse, and how many better."""
    return tuple(map(len, drift.compare([accepted], [fresh])))


@pytest.mark.parametrize("ratio, expected", [(0.61, (1, 0)), (0.6, (0, 0)), (0.41, (0, 1))])
def test_a_ratio_outside_its_band_is_worse_or_better(ratio, expected):
    assert counts(line(), line(ratio=ratio)) == expected
    assert counts(line(unit="B/s"), line(unit="B/s", ratio=ratio)) == expected[::-1]


def test_noise_and_spread_of_either_run_widen_the_band():
    assert drift.band(line(), line()) == drift.FLOOR
    assert drift.band(line(noise=1.3), line()) == pytest.approx(0.6)
    assert drift.band(line(), line(noise=0.7)) == pytest.approx(0.6)
    assert drift.band(line(spread=0.9), line()) == 0.9


@pytest.mark.parametrize("other", [{"machine": THERE}, {"peer": "torch"}, {"python": "3.12.1"}])
def test_another_machine_peer_or_python_is_not_compared(other):
    assert counts(line(**other), line(ratio=5.0)) == (0, 0)


def test_the_command_fails_with_a_table_until_the_lines_are_accepted(tmp_path, monkeypatch, capsys):
    results = tmp_path / "packages/data/benchmarks/results"
    results.mkdir(parents=True)
    theirs, fresh = line(machine=THERE), line(ratio=0.9)
    (results / "pipeline.jsonl").write_text(f"{json.dumps(theirs)}\n{json.dumps(line())}\n")
    (tmp_path / "fresh.jsonl").write_text(json.dumps(fresh) + "\n")
    monkeypatch.setattr(drift, "ROOT", tmp_path)
    command = ["drift.py", "data", str(tmp_path / "fresh.jsonl")]
    monkeypatch.setattr(sys, "argv", command)
    assert drift.main() == 1
    row = "| pipeline: a case | cpu_s | 0.5 | 0.9 | ± 20% | abc1234 |"
    assert row in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", [*command, "--accept"])
    assert drift.main() == 0
    assert drift.read(results / "pipeline.jsonl") == [theirs, fresh]
    monkeypatch.setattr(sys, "argv", command)
    assert drift.main() == 0
