# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""scripts/changed.py: the packages that a change concerns, and the checks whose keys it changes."""

import copy
import fnmatch
import hashlib
import json
import subprocess
import sys

import pytest

import changed
import reach
import workspace

pytestmark = pytest.mark.once

ALL = sorted(workspace.members())
FIRST, SECOND = workspace.PYTHONS
# Checks that have the whole repository, or all documentation and sources, as input.
BROAD = ("docs", "build-*", "integration-*(test_site.py)")
OF_OPTIM = [f"thorough-{FIRST}(optim)", f"tests-{SECOND}(optim)", "parity(optim)"]
GROUPS = (f"thorough-{FIRST}", f"tests-{SECOND}", "parity", "bare-*", "doctests-*")
OF_SOURCE = [f"{group}({folder})" for folder in ("optim", "stack") for group in GROUPS]


def test_a_file_of_a_package_concerns_it_and_its_dependents_another_all(repository, commit):
    assert changed.concerned(["packages/data/src/dovetail_data/rows/pack.py"]) == ["data", "stack"]
    assert changed.concerned([]) == []
    assert changed.concerned(["packages/conftest.py"]) == ALL
    assert changed.concerned(["packages/data/README.md", "constraints/py311.txt"]) == ALL
    (repository / "packages" / "models" / "CHANGELOG.md").write_text("changed\n")
    commit(repository, "Change one")
    for base, expected in {"HEAD~1": ["models", "stack"], "0" * 40: ALL}.items():
        line = [sys.executable, str(repository / "scripts" / "changed.py"), base]
        assert json.loads(subprocess.check_output(line)) == expected


@pytest.fixture(scope="module")
def base():
    tree = reach.Tree()
    return changed.keys(tree), {c.name: c for c in changed.checks(tree)}, tree


@pytest.fixture
def moved(base):
    """The checks whose keys change with a file, without those whose input is the repository."""
    keys, checks, tree = base
    whole = {name for name, check in checks.items() if len(check.paths) == len(tree.files)}

    def of(path="", before="", after="# changed\n"):
        other = copy.copy(tree)  # it keeps what has been read
        if path:
            text = tree.text(path)
            text = text.replace(before, after, 1) if before else text + after
            digest = hashlib.sha256(text.encode()).hexdigest()
            other.text = lambda p: text if p == path else tree.text(p)
            other.digest = lambda p: digest if p == path else tree.digest(p)
            other._named = lambda p: reach.Tree._named(other, p) if p == path else tree._named(p)
        new = changed.keys(other)
        assert new.keys() == keys.keys()
        return {name for name in keys if new[name] != keys[name]} - whole

    return of


def matching(names, *patterns):
    return {name for name in names if any(fnmatch.fnmatch(name, p) for p in patterns)}


TASKS = {f"examples({file.stem})" for file in (workspace.ROOT / "examples/tasks").glob("*.??*")}
TASKS -= {"examples(ruff)", "examples(test_tasks)"}

# A file of each kind, and the checks that it reaches beside the broad ones.
CASES = {
    "packages/optim/tests/test_muon.py": OF_OPTIM,
    "packages/optim/benchmarks/accelerator.py": OF_OPTIM,
    "packages/optim/CHANGELOG.md": [],
    "packages/optim/README.md": [*OF_OPTIM, "bare-*(optim)", "documents(packages/optim/README.md)"],
    "packages/optim/pyproject.toml": OF_SOURCE,
    "integration_tests/test_guard_with_train.py": ["integration-*(test_guard_with_train.py)"],
    "integration_tests/programs/two_slices.py": ["*(test_slices_of_families.py)", "absent"],
    "examples/notebooks/digits.ipynb": ["examples(digits)"],
    "examples/test_notebooks.py": ["examples(*)"],
    "examples/tasks/command_line.sh": ["examples(command_line)"],
    "examples/tasks/test_tasks.py": TASKS,
    "docs/tasks.md": TASKS,
    "scripts/documents.toml": ["documents(*)", "bare-*"],
    "conftest.py": [],
    "scripts/checks.py": [],
    "docs/install.md": [],
}


@pytest.mark.thorough
@pytest.mark.parametrize("path", CASES)
def test_a_file_reaches_its_checks_and_no_other(moved, base, path):
    beside = matching(base[0], *BROAD)
    assert moved(path) - beside == matching(base[0], *CASES[path]) - beside


@pytest.mark.thorough
def test_a_source_reaches_what_imports_it_and_the_other_side_of_an_edge(moved, base):
    edge = moved("packages/kernels/src/dovetail_kernels/quantized/layout.py")
    quant = {f"thorough-{FIRST}(quant)", f"tests-{SECOND}(quant)"}
    assert {name for name in edge if name.endswith("(quant)")} == quant
    found = moved("packages/optim/src/dovetail_optim/matrix/muon.py")
    packages = {n for n in base[0] if not n.startswith(("integration", "examples", "documents"))}
    assert found & packages == matching(packages, *OF_SOURCE, *BROAD)
    assert len(matching(found, "integration-*(test_guard_with_train.py)")) == 2
    assert "integration-3.11(test_optimizers_with_train.py)" in found
    assert "integration-3.11(test_many_hosts.py)" in found  # by the command
    assert {"examples(guarded_training)", "documents(packages/train/README.md)"} <= found
    assert not matching(found, "*(test_infer_with_kernels.py)", "*(mixtures)", "*/data/README.md)")


@pytest.mark.thorough
def test_a_version_an_interpreter_and_a_session_reach_their_checks(moved, base, monkeypatch):
    keys, checks, tree = base
    text = '    run_marked(session, "triton", '
    assert moved("noxfile.py", text, f"    print()\n{text}") == {"triton"}
    real, other = tree.constraints, {FIRST: {"ray": "0.1"}}
    with monkeypatch.context() as change:
        change.setattr(tree, "constraints", lambda python: real(python) | other.get(python, {}))
        found = moved()
    assert f"thorough-{FIRST}(cluster)" in found
    assert not matching(found, "*(kernels)", "*(optim)", "*-3.12*")
    versions = {FIRST: changed.interpreter(FIRST), SECOND: "3.12.99"}
    monkeypatch.setattr(changed, "interpreter", versions.get)
    assert matching(keys, f"*{SECOND}*") >= (found := moved()) > set()
    assert {checks[name].python for name in found} == {SECOND}


@pytest.mark.costly("it computes all keys")
def test_every_check_has_inputs_without_the_record_and_every_edge_a_file(base):
    keys, checks, tree = base
    assert all(check.paths and reach.RECORD not in check.paths for check in checks.values())
    for path, patterns in tree.settings["edges"].items():
        assert path in tree.files, path
        assert all(fnmatch.filter(keys, pattern) for pattern in patterns), path
