# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The tables of capabilities, from markers in the sources of tests and sessions on record."""

import json
import re
from pathlib import Path

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

@pytest.mark.parametrize("x", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.capability("adding")
def test_adds(x): pass

@pytest.mark.slow(reason="long")
@pytest.mark.capability("dividing")
class TestDivision: pass

TestFaults = pytest.mark.capability("faults")(TestFaults)
"""
SESSION = {"platform": "gpu", "device": "H100", "tiny": False}
DONE = {"outcome": "done", "failed": 0}
STEP = accelerator_step.Step(name="add", run="a:b", order=1, limit_s=1.0, proves=("adding",))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The suite of a package and that of all, and an empty folder of results."""
    for folder in ("packages/one/tests/sub", "integration_tests", "docs/results"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "packages/one/tests/sub/test_it.py").write_text(SUITE)
    (tmp_path / "integration_tests/test_all.py").write_text(
        '@pytest.mark.capability("both")\nasync def test_both(): pass\n'
    )
    return tmp_path


def rows(root: Path) -> dict[str, str]:
    text = features.tables(features.markers(root), features.devices(root, {"one.add": STEP}))
    return dict(line.strip("| ").split(" | ") for line in text.splitlines() if " | " in line)


def test_a_row_has_a_fast_test_on_a_cpu_before_others(tree):
    file = "packages/one/tests/sub/test_it.py"
    assert rows(tree) == {
        "capability": "proved by",
        "of a file": f"`{file}::test_lowers`",
        "adding": f"`{file}::test_adds`, lowered for CUDA, lowered for TPU",
        "dividing": f"`{file}::TestDivision`",  # only a slow one
        "faults": f"`{file}::TestFaults`",
        "both": "`integration_tests/test_all.py::test_both`",
    }


@pytest.mark.parametrize(
    "session, said",
    [
        ({"steps": {"one.add": DONE}}, ", run on H100"),
        ({"steps": {"one.add": DONE}, "platform": "cpu"}, ""),
        ({"steps": {"one.add": DONE}, "tiny": True}, ""),
        ({"steps": {"one.add": DONE | {"failed": 2}}}, ""),
        ({"steps": {"one.add": DONE | {"outcome": "timed out"}}}, ""),
        ({"steps": {"one.gone": DONE}}, ""),
    ],
)
def test_a_gpu_is_named_where_a_whole_step_ended_well(tree, session, said):
    (tree / "docs/results/accelerator-x.json").write_text(json.dumps(SESSION | session))
    assert rows(tree)["adding"].endswith(f"lowered for TPU{said}")
    assert "H100" not in rows(tree)["dividing"]


@pytest.mark.parametrize(
    "arguments",
    ["NAME", "'a', on='gpu'", "'a', on=()", "7", "'a', on=ON", "'a', on=7", "", "'a', 'b'"],
)
def test_a_marker_that_is_no_literal_or_of_no_column_is_refused(arguments):
    message = r"must hold a literal name and columns .* got pytest\.mark.* write pytest\.mark"
    with pytest.raises(ValueError, match=message):
        [*features.declared(f"@pytest.mark.capability({arguments})\ndef test_a(): pass")]


def test_a_marker_on_no_test_is_refused():
    with pytest.raises(ValueError, match=r"must be on a test or be pytestmark; got marks = "):
        [*features.declared("marks = [pytest.mark.capability('a')]")]


@pytest.mark.costly("it reads every test")
def test_the_real_page_has_no_empty_cell_and_steps_prove_its_rows():
    found, steps = features.markers(), accelerator_step.catalog()
    text = features.tables(found, features.devices(workspace.ROOT, steps))
    assert re.findall(r"\| *\|", text) == []
    assert all(line.count("|") == 3 for line in text.splitlines() if line.startswith("|"))
    assert {package for package, _ in found} == {*workspace.members(), features.TOGETHER}
    assert [key for key, tests in found.items() if all("cpu" not in t[1] for t in tests)] == []
    proved = {(step.split(".")[0], name) for step, s in steps.items() for name in s.proves}
    assert proved <= found.keys()
    assert "NVIDIA H100" in text
