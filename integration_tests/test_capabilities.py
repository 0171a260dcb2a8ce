# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The tables of capabilities, from markers in the sources of tests and sessions on record."""

import json
import re
import sys

import pytest

import accelerator_step
import workspace

sys.path.append(str(workspace.ROOT / "docs"))

import capabilities

pytestmark = pytest.mark.once

SUITE = """
pytestmark = [pytest.mark.capability("of a file")]

@pytest.mark.thorough
@pytest.mark.capability("adding", on=("cuda", "cpu"))
def test_killed(): pass

@pytest.mark.capability("adding", on="tpu")
def test_adds(): pass

class TestDivision:
    @pytest.mark.capability("dividing")
    def test_divides(): pass
"""


def test_a_row_has_a_fast_test_and_the_gpu_of_a_whole_step(tmp_path):
    rows, steps = {}, {}
    for name, proof in capabilities.declared(SUITE):
        rows.setdefault(("one", name), []).append(proof)
        options = {"run": "a:b", "order": 1, "limit_s": 1.0, "proves": (name,)}
        steps[f"one.{name}"] = accelerator_step.Step(name=name, **options)
    done = {"outcome": "done", "failed": 0}
    session = {"platform": "gpu", "device": "H100", "tiny": False}
    session["steps"] = {"one.adding": done, "one.dividing": done | {"failed": 2}}
    results = tmp_path / "docs/results"
    results.mkdir(parents=True)
    for name, other in (("a", {}), ("b", {"tiny": True, "device": "L4"})):
        (results / f"accelerator-{name}.json").write_text(json.dumps(session | other))
    assert capabilities.tables(rows, capabilities.devices(tmp_path, steps)).splitlines()[5:] == [
        "| of a file | `test_adds` |",
        "| adding | `test_adds`, lowered for CUDA, lowered for TPU, run on H100 |",
        "| dividing | `TestDivision` |",
    ]


@pytest.mark.costly("it reads every test")
def test_each_capability_of_the_repository_runs_on_a_cpu_and_each_step_proves_one():
    rows, steps = capabilities.proofs(), accelerator_step.catalog()
    text = capabilities.tables(rows, capabilities.devices(workspace.ROOT, steps))
    assert {package for package, _ in rows} == {*workspace.members(), capabilities.TOGETHER}
    assert [key for key, proved in rows.items() if all("cpu" not in p[0] for p in proved)] == []
    assert {(s.split(".")[0], n) for s, step in steps.items() for n in step.proves} <= rows.keys()
    assert re.findall(r"\| *\|", text) == []
    assert "NVIDIA H100" in text
