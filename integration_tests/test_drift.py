# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Fresh benchmark lines against accepted ones: what drifted, what is said, what is written."""

import json
import subprocess
import sys

import pytest

import drift
import workspace

pytestmark = pytest.mark.once

HERE, THERE = "x86_64 avx2 2 cores", "NVIDIA H200"


def line(case="a case", **fields):
    """A line as measure.report prints it: ours takes half of the peer's time."""
    command = "PYTHONPATH=scripts python packages/data/benchmarks/pipeline.py"
    usual = {"metric": "cpu_s", "unit": "s", "value": 1.0, "ratio": 0.5, "peer": "grain"}
    more = {"noise": 1.0, "spread": 0.02, "repeats": 9, "machine": HERE, "python": "3.11.7"}
    return {"case": case, **usual, **more, "commit": "abc1234", "command": command, **fields}


def found(accepted, fresh):
    drifts, notes = drift.compare([accepted], [fresh])
    return [(d.worse, d.accepted, d.fresh) for d in drifts], notes


def test_a_ratio_within_its_band_is_no_drift():
    for ratio in (0.42, 0.5, 0.6):  # 0.5 / 1.2 to 0.5 * 1.2
        assert found(line(), line(ratio=ratio)) == ([], [])


@pytest.mark.parametrize("ratio, worse", [(0.61, True), (0.41, False)])
def test_a_ratio_outside_is_worse_or_better(ratio, worse):
    assert found(line(), line(ratio=ratio)) == ([(worse, 0.5, ratio)], [])


def test_rates_and_fill_are_better_when_larger():
    for unit in ("B/s", "tokens/s", "of slots"):
        assert found(line(unit=unit), line(unit=unit, ratio=0.9))[0] == [(False, 0.5, 0.9)]
        assert found(line(unit=unit), line(unit=unit, ratio=0.3))[0] == [(True, 0.5, 0.3)]


def test_noise_and_spread_of_either_run_widen_the_band():
    assert drift.band(line(), line()) == drift.FLOOR
    assert drift.band(line(noise=1.3), line()) == pytest.approx(0.6)
    assert drift.band(line(), line(noise=0.7)) == pytest.approx(0.6)
    # 3 * 1.25 / 1.35 * 0.9 / sqrt(9)
    assert drift.band(line(spread=0.9), line(spread=0.0)) == pytest.approx(0.8333, rel=1e-3)


def test_counted_bytes_have_a_narrow_band():
    counted = {"metric": "temporary_bytes", "unit": "bytes"}
    assert found(line(**counted, value=1000), line(**counted, value=1009)) == ([], [])
    assert found(line(**counted, value=1000), line(**counted, value=1011))[0][0][0] is True
    # The peak of a process is measured, not counted.
    assert not drift.exact(line(metric="peak_memory", unit="B"))


def test_another_machine_is_said_and_is_no_failure():
    drifts, notes = found(line(machine=THERE), line(ratio=5.0))
    assert (drifts, notes) == ([], [f"none recorded for this kind of machine: {HERE}"])
    old = line()
    del old["machine"]  # recorded before machines were
    assert found(old, line(ratio=5.0))[0] == []


def test_another_peer_or_python_is_another_figure():
    for other in ({"peer": "torch"}, {"python": "3.12.1"}):
        drifts, notes = found(line(**other), line(ratio=5.0))
        assert drifts == []
        assert notes[0] == "new: pipeline: a case, cpu_s"


def test_what_is_new_and_what_is_gone_is_said():
    _, notes = drift.compare([line("old")], [line("new")])
    assert notes == ["new: pipeline: new, cpu_s", "gone: pipeline: old, cpu_s"]
    elsewhere = line("old", command="python packages/data/benchmarks/other.py")
    assert drift.compare([elsewhere, line()], [line()]) == ([], [])  # a script that did not run


def test_accepting_keeps_the_lines_of_other_machines(tmp_path):
    file = tmp_path / "pipeline.jsonl"
    theirs, old = line(machine=THERE), line(ratio=0.4)
    file.write_text(f"{json.dumps(theirs)}\n{json.dumps(old)}\n")
    assert drift.accept([line("new")], tmp_path) == [file]
    assert drift.read(file) == [theirs, line("new")]
    assert drift.compare(drift.read(file), [line("new")]) == ([], [])


def run(*arguments):
    script = str(workspace.ROOT / "scripts" / "drift.py")
    return subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True)


def test_the_command_fails_with_a_table_and_adds_a_line_to_the_summary(
    tmp_path, monkeypatch, capsys
):
    results = tmp_path / "packages/data/benchmarks/results"
    results.mkdir(parents=True)
    (results / "pipeline.jsonl").write_text(json.dumps(line()) + "\n")
    fresh, summary = tmp_path / "fresh.jsonl", tmp_path / "summary.md"
    fresh.write_text(json.dumps(line(ratio=0.9)) + "\n")
    monkeypatch.setattr(drift, "ROOT", tmp_path)
    command = ["drift.py", "data", str(fresh), "--summary", str(summary)]
    monkeypatch.setattr(sys, "argv", command)
    assert drift.main() == 1
    row = "| worse | pipeline: a case | cpu_s | 0.5 | 0.9 | ± 20% | abc1234 |"
    assert row in capsys.readouterr().out
    assert summary.read_text().startswith("- data: 1 lines, 1 worse, 0 better\n")
    monkeypatch.setattr(sys, "argv", [*command, "--accept"])
    assert drift.main() == 0
    monkeypatch.setattr(sys, "argv", command)
    assert drift.main() == 0
    assert summary.read_text().endswith("- data: 1 lines, 0 worse, 0 better\n")


def test_what_is_no_result_is_refused(tmp_path):
    fresh = tmp_path / "fresh.jsonl"
    fresh.write_text("nox > Running session bench\n")
    with pytest.raises(ValueError, match=r"must be JSON lines .* got .*fresh.jsonl:1: 'nox > Run"):
        drift.read(fresh)
    done = run("dota", str(fresh))
    assert done.returncode == 2
    assert "invalid choice: 'dota'" in done.stderr
