# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The tables of compatibility and features, from the results that runs of suites leave."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import compatibility
import features
import suite_results
import workspace

pytestmark = pytest.mark.once

SUITE = """
import os, pytest

@pytest.mark.capability("adding")
def test_adds():
    assert 1 + 1 == 2 and "SUITE_SET" not in os.environ

@pytest.mark.capability("adding", on=("cuda", "tpu"))
@pytest.mark.parametrize("x", [1, pytest.param(2, marks=pytest.mark.skip(reason="no two"))])
def test_lowers(x):
    pass

@pytest.mark.slow
@pytest.mark.capability("dividing")
def test_divides():
    assert 4 / 2 == 2
"""
PROJECT = """
[project]
name = "dovetail-one"
version = "0.1.0"
dependencies = ["pluggy>={}", "absent-from-here>=1.0"]
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The frame of a repository with one member and its suite."""
    root = tmp_path / "checkout"
    (root / "packages/one/tests").mkdir(parents=True)
    (root / "packages/one/tests/test_it.py").write_text(SUITE)
    (root / "packages/one/pyproject.toml").write_text(PROJECT.format("1.0"))
    shutil.copy(workspace.ROOT / "conftest.py", root)
    shutil.copytree(workspace.ROOT / "scripts", root / "scripts")
    shutil.copytree(workspace.ROOT / "constraints", root / "constraints")
    shutil.copy(workspace.ROOT / "pyproject.toml", root)
    return root


def run(root: Path, *options: str, which: str = "newest") -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "pytest", "-q", "packages/one/tests", *options]
    own = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false", suite_results.VARIABLE: which}
    return subprocess.run(line, cwd=root, env=own, capture_output=True, text=True, check=False)


def record(root: Path) -> dict:
    (file,) = (root / suite_results.FOLDER).glob("*.json")
    return json.loads(file.read_text())


def counts(passed=0, failed=0, skipped=0):
    return {"passed": passed, "failed": failed, "skipped": skipped}


def test_a_run_leaves_its_versions_outcomes_and_capabilities(checkout):
    done = run(checkout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the result is in build/results/one-newest-py" in done.stdout
    line = record(checkout)
    assert counts(2, 0, 1).items() <= line.items()
    assert line["capabilities"] == {
        "adding": {"cpu": counts(1), "cuda": counts(1, 0, 1), "tpu": counts(1, 0, 1)}
    }
    assert (line["package"], line["set"], line["marks"]) == ("one", "newest", "")
    assert line["declared"] == {"absent-from-here": ">=1.0", "pluggy": ">=1.0"}
    assert line["versions"].keys() >= {"pluggy"}
    assert "absent-from-here" not in line["versions"]
    assert line["alone"] is True


def test_a_failure_and_a_file_that_cannot_be_imported_are_counted(checkout):
    tests = checkout / "packages/one/tests"
    (tests / "test_it.py").write_text(SUITE.replace("1 + 1 == 2", "1 + 1 == 3"))
    assert run(checkout).returncode == 1
    assert record(checkout)["capabilities"]["adding"]["cpu"] == counts(0, 1)
    (tests / "test_broken.py").write_text("import absent_from_here")
    run(checkout)
    assert record(checkout)["failed"] == 1
    assert record(checkout)["passed"] == 0  # pytest ran none


def test_a_run_of_marks_is_a_result_of_its_own_and_a_partial_one_is_none(checkout):
    assert run(checkout, "-k", "adds").returncode == 0
    assert run(checkout, "--deselect", "packages/one/tests/test_it.py::test_adds").returncode == 0
    assert run(checkout, "-x").returncode == 0
    assert not (checkout / suite_results.FOLDER).exists()
    assert run(checkout, "-m", "slow").returncode == 0
    line = record(checkout)
    assert (line["marks"], line["capabilities"]) == ("slow", {"dividing": {"cpu": counts(1)}})


@pytest.mark.parametrize(
    "which, message",
    [
        ("newer", "SUITE_SET must be one of floor, pinned, newest; got 'newer'; write"),
        ("pinned", r"versions of constraints/; got pluggy .* \(pinned: 0.1\); run 'nox -s tests-"),
    ],
)
def test_a_false_name_of_a_set_is_refused(checkout, which, message):
    for file in (checkout / "constraints").iterdir():
        file.write_text("pluggy==0.1\n")
    done = run(checkout, which=which)
    assert done.returncode == 4  # pytest's usage error
    assert not (checkout / suite_results.FOLDER).exists()
    (shown,) = [text for text in done.stdout.splitlines() if "no result is recorded" in text]
    assert re.search(message, shown)


def line(which="pinned", **changes):
    """A result of dovetail-data on Python 3.12 with the versions that are pinned today."""
    pins = workspace.constraints("3.12")
    return {
        "package": "data",
        "set": which,
        "python": "3.12",
        "marks": "",
        "alone": True,
        **counts(7, 0, 1),
        "date": "2026-01-02",
        "versions": {name: pins[name] for name in ("grain", "numpy")},
        "declared": suite_results.declared("data"),
        "capabilities": {"packing": {"cpu": counts(2)}},
        **changes,
    }


def shown(*lines, which="pinned", releases=None):
    return compatibility.cell(lines, "data", which, "3.12", {"3.12": releases or {}})


def test_a_cell_shows_the_result_of_its_package_set_and_python():
    with_jax = line(versions={"jax": workspace.constraints("3.12")["jax"]})
    assert shown(line()) == "7 passed; 2026-01-02"
    jax = workspace.constraints("3.12")["jax"]
    assert shown(with_jax) == f"7 passed; jax {jax}; 2026-01-02"
    assert shown(line(failed=3)) == "7 passed, **3 failed**; 2026-01-02"


@pytest.mark.parametrize(
    "changes",
    [
        {"package": "optim"},
        {"set": "floor"},
        {"python": "3.11"},
        {"marks": "slow"},
        {"alone": False},
        {"versions": {"grain": "0.0.1"}},
    ],
)
def test_a_cell_is_empty_without_a_whole_result_of_todays_versions(changes):
    assert shown(line(**changes)) == "not run"


def test_a_floor_counts_while_its_bounds_are_those_declared():
    floor = line("floor", versions={"grain": "0.1"})
    assert shown(floor, which="floor") == "7 passed; 2026-01-02"
    assert shown(floor | {"declared": {"grain": ">=0.1"}}, which="floor") == "not run"


def test_pinned_versions_answer_for_the_newest_if_they_are_these():
    pins = workspace.constraints("3.12")
    newer = {"grain": pins["grain"], "numpy": "99.0"}
    assert shown(line(), which="newest", releases=pins) == "as pinned: the same versions"
    assert shown(line(), which="newest", releases=newer) == "not run"
    assert shown(line(), which="newest") == "not run"  # the releases were never looked up
    own = line("newest", versions=newer, passed=9)
    assert shown(line(), own, which="newest", releases=newer) == "9 passed; 2026-01-02"
    assert shown(line(), own, which="newest", releases=pins) == "as pinned: the same versions"


def test_markers_are_read_from_the_sources():
    assert features.declared(SUITE) == [
        ("adding", ("cpu",)),
        ("adding", ("cuda", "tpu")),
        ("dividing", ("cpu",)),
    ]


@pytest.mark.parametrize("arguments", ["NAME", "'a', on='gpu'", "'a', on=()", "7", "'a', on=ON"])
def test_a_marker_that_is_no_literal_or_of_no_column_is_refused(arguments):
    message = r"must hold a literal name and columns .* got pytest\.mark.* write pytest\.mark"
    with pytest.raises(ValueError, match=message):
        features.declared(f"import pytest\nx = pytest.mark.capability({arguments})")


def row(lines, columns=("cpu",), devices=None):
    page = features.page({"data": {"packing": set(columns)}}, lines, devices or {})
    (text,) = [text for text in page.splitlines() if text.startswith("| packing")]
    return [cell.strip() for cell in text.strip("|").split("|")][1:]


def test_a_feature_counts_tests_that_passed_and_carry_the_marker():
    assert row([line()]) == ["2", "", "", "not yet run"]
    assert row([]) == ["not run", "", "", "not yet run"]
    assert row([line(package="optim")]) == ["not run", "", "", "not yet run"]
    both = line(capabilities={"packing": {"cpu": counts(2), "tpu": counts(1)}})
    assert row([both]) == ["2", "", "", "not yet run"]  # the marker for TPUs is gone
    assert row([both], ["cpu", "cuda", "tpu"]) == ["2", "not run", "1", "not yet run"]


def test_a_failure_anywhere_shows_and_skipped_tests_prove_nothing():
    failing = line("floor", capabilities={"packing": {"cpu": counts(5, 1)}})
    assert row([line(), failing])[0] == "**1 failed**"
    skipping = line("floor", capabilities={"packing": {"cpu": counts(0, 0, 4)}})
    assert row([skipping])[0] == "skipped"
    assert row([line(), skipping])[0] == "2"


def test_a_gpu_counts_where_a_step_that_proves_it_ended_well():
    proofs = {"data.pack": ("packing",), "data.mix": ("mixing",)}
    done = {"outcome": "done", "failed": 0}
    steps = {"data.pack": done, "data.mix": done | {"failed": 2}}
    states = [{"device": "H100", "steps": steps}]
    assert features.ran_on(proofs, states) == {("data", "packing"): {"H100"}}
    late = [{"device": "H100", "steps": {"data.pack": done | {"outcome": "timed out"}}}]
    assert features.ran_on(proofs, late) == {}
    assert row([line()], devices=features.ran_on(proofs, states))[-1] == "H100"


def test_sessions_of_a_cpu_or_of_tiny_shapes_are_left_out(tmp_path):
    state = {"platform": "gpu", "device": "H100", "tiny": False, "steps": {}}
    for name, changes in {"a": {}, "b": {"tiny": True}, "c": {"platform": "cpu"}}.items():
        (tmp_path / f"accelerator-{name}.json").write_text(json.dumps(state | changes))
    assert features.sessions(tmp_path) == [state]


def test_gathering_keeps_the_later_result_of_a_kind(tmp_path):
    file, folder = tmp_path / "suites.jsonl", tmp_path / "artifacts"
    folder.mkdir()

    def gathered(*lines):
        for number, one in enumerate(lines):
            (folder / f"{number}.json").write_text(json.dumps(one))
        return suite_results.gather([folder], file)

    assert gathered(line(), line(marks="slow")) == [line(), line(marks="slow")]
    older, newer = line(date="2025-12-31", passed=3), line(date="2026-01-03", passed=9)
    assert gathered(older)[0] == line()
    assert gathered(newer)[0] == newer
    assert suite_results.read(file) == [newer, line(marks="slow")]


@pytest.mark.parametrize("module", [compatibility, features], ids=lambda m: m.__name__)
def test_the_committed_page_is_that_of_the_results_and_markers(module):
    assert module.PAGE.read_text() == module.current(), "run python scripts/tables.py"


def test_every_capability_is_tested_on_a_cpu_and_steps_name_capabilities():
    found = features.marks()
    cells = [(name, columns) for rows in found.values() for name, columns in rows.items()]
    assert [name for name, columns in cells if "cpu" not in columns] == []
    for step, names in features.proofs().items():
        assert set(names) <= found[step.split(".")[0]].keys(), step
