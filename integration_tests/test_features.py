# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The tables of capabilities, from markers in the sources of tests and sessions on record."""

import json
import re

import pytest

import accelerator_step
import features
import workspace

pytestmark = pytest.mark.once

SUITE = """
pytestmark = [pytest.mark.capability("of a file")]

@pytest.mark.thorough
@pytest.mark.capability("adding", on=("cuda", "cpu"))
def test_killed(): pass

@pytest.mark.capability("adding", on="tpu")
def test_lowers(): pass

@pytest.mark.capability("adding")
def test_adds(): pass

@pytest.mark.slow(reason="long")
class TestDivision:
    @pytest.mark.capability("dividing")
    def test_divides(): pass

TestFaults = pytest.mark.capability("faults")(TestFaults)
"""


def test_a_row_has_a_fast_test_and_the_gpu_of_a_whole_step(tmp_path):
    tests, results = tmp_path / "packages/one/tests", tmp_path / "docs/results"
    tests.mkdir(parents=True)
    results.mkdir(parents=True)
    (tests / "test_it.py").write_text(SUITE)
    session = {"platform": "gpu", "device": "H100", "tiny": False}
    done = {"outcome": "done", "failed": 0}
    session["steps"] = {"one.add": done, "one.divide": done | {"failed": 2}}
    (results / "accelerator-a.json").write_text(json.dumps(session))
    tiny = session | {"tiny": True, "device": "L4"}
    (results / "accelerator-b.json").write_text(json.dumps(tiny))
    steps = {
        f"one.{name}": accelerator_step.Step(
            name=name, run="a:b", order=1, limit_s=1.0, proves=(proved,)
        )
        for name, proved in (("add", "adding"), ("divide", "dividing"))
    }
    text = features.tables(features.proofs(tmp_path), features.devices(tmp_path, steps))
    file = "packages/one/tests/test_it.py"
    assert text.splitlines()[4:] == [
        "|---|---|",
        f"| of a file | `{file}::test_lowers` |",
        f"| adding | `{file}::test_adds`, lowered for CUDA, lowered for TPU, run on H100 |",
        f"| dividing | `{file}::TestDivision` |",
        f"| faults | `{file}::TestFaults` |",
    ]


@pytest.mark.costly("it reads every test")
def test_each_capability_of_the_repository_runs_on_a_cpu_and_each_step_proves_one():
    rows, steps = features.proofs(), accelerator_step.catalog()
    text = features.tables(rows, features.devices(workspace.ROOT, steps))
    assert {package for package, _ in rows} == {*workspace.members(), features.TOGETHER}
    assert [key for key, proved in rows.items() if all("cpu" not in p[0] for p in proved)] == []
    assert {(s.split(".")[0], n) for s, step in steps.items() for n in step.proves} <= rows.keys()
    assert re.findall(r"\| *\|", text) == []
    assert "NVIDIA H100" in text
