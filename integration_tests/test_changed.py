# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""scripts/changed.py: the packages that a change concerns, and the checks whose keys it changes."""

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
OF_SOURCE = [
    f"{group}({folder})"
    for folder in ("optim", "stack")
    for group in (f"thorough-{FIRST}", f"tests-{SECOND}", "parity", "bare-*", "doctests-*")
]


def test_a_file_of_a_package_concerns_it_and_those_that_depend_on_it_another_all(repository):
    assert changed.concerned(["packages/data/src/dovetail_data/pack.py"]) == ["data", "stack"]
    assert changed.concerned([]) == []
    assert changed.concerned(["packages/data/README.md", "constraints/py311.txt"]) == ALL
    line = [sys.executable, str(repository / "scripts" / "changed.py")]

    def ask(base: str) -> list[str]:
        done = subprocess.run([*line, base], check=True, capture_output=True, text=True)
        return json.loads(done.stdout)

    (repository / "packages" / "models" / "CHANGELOG.md").write_text("changed\n")
    subprocess.run(["git", "-C", str(repository), "commit", "-qam", "Change one"], check=True)
    assert ask("HEAD~1") == ["models", "stack"]
    assert ask("0" * 40) == ALL


@pytest.fixture(scope="module")
def base():
    tree = reach.Tree()
    return changed.keys(tree), {c.name: c for c in changed.checks(tree)}


@pytest.fixture
def moved(base):
    """The checks whose keys change with a file, without those whose input is the repository."""
    keys, checks = base
    files = len(reach.Tree().files)
    whole = {name for name, check in checks.items() if len(check.paths) == files}

    def of(path="", before="", after="# changed\n"):
        tree = reach.Tree()
        if path:
            assert path in tree.files, path
            text = tree.text(path)
            text = text.replace(before, after, 1) if before else text + after
            read, digest = tree.text, tree.digest
            other = hashlib.sha256(text.encode()).hexdigest()
            tree.text = lambda name: text if name == path else read(name)
            tree.digest = lambda name: other if name == path else digest(name)
        new = changed.keys(tree)
        assert new.keys() == keys.keys()
        return {name for name in keys if new[name] != keys[name]} - whole

    return of


def matching(names, *patterns):
    return {name for name in names if any(fnmatch.fnmatch(name, p) for p in patterns)}


# A file of each kind, and the checks that it reaches beside the broad ones.
CASES = {
    "packages/optim/tests/test_muon.py": OF_OPTIM,
    "packages/optim/benchmarks/accelerator.py": OF_OPTIM,
    "packages/optim/CHANGELOG.md": [],
    "packages/optim/README.md": [*OF_OPTIM, "bare-*(optim)", "documents(packages/optim/README.md)"],
    "packages/data/README.md": [
        *(f"thorough-{FIRST}(data)", f"tests-{SECOND}(data)", "parity(data)"),
        *("bare-*(data)", "documents(packages/data/README.md)"),
    ],
    "packages/optim/pyproject.toml": OF_SOURCE,
    "integration_tests/test_guard_with_train.py": ["integration-*(test_guard_with_train.py)"],
    "integration_tests/programs/two_slices.py": [
        *("integration-*(test_slices_of_families.py)", "absent"),
    ],
    "examples/notebooks/digits.ipynb": ["examples(digits)"],
    "examples/test_notebooks.py": ["examples(*)"],
    "scripts/documents.toml": ["documents(*)", "bare-*"],
    "conftest.py": [],
    "scripts/checks.py": [],
    "docs/install.md": [],
}


@pytest.mark.thorough
@pytest.mark.parametrize("path", CASES)
def test_a_file_reaches_its_checks_and_no_other(moved, base, path):
    found = moved(path)
    expected = matching(base[0], *CASES[path])
    beside = matching(base[0], *BROAD)
    assert found - beside == expected - beside


@pytest.mark.thorough
def test_a_source_reaches_what_imports_it_and_the_other_side_of_an_edge(moved, base):
    edge = moved("packages/kernels/src/dovetail_kernels/quantized/layout.py")
    quant = {f"thorough-{FIRST}(quant)", f"tests-{SECOND}(quant)"}
    assert {name for name in edge if name.endswith("(quant)")} == quant
    found = moved("packages/optim/src/dovetail_optim/muon.py")
    packages = [n for n in base[0] if not n.startswith(("integration", "examples", "documents"))]
    expected = matching(packages, *OF_SOURCE, *BROAD)
    assert found & set(packages) == expected
    for name, reached in {
        "integration-3.11(test_guard_with_train.py)": True,
        "integration-3.11(test_optimizers_with_train.py)": True,
        "integration-3.12(test_guard_with_train.py)": True,
        "integration-3.11(test_infer_with_kernels.py)": False,
        "integration-3.11(test_many_hosts.py)": True,  # by the command
        "examples(guarded_training)": True,
        "examples(mixtures)": False,
        "documents(packages/train/README.md)": True,
        "documents(packages/data/README.md)": False,
    }.items():
        assert (name in found) == reached, name


@pytest.mark.thorough
def test_a_version_reaches_the_environments_that_hold_it(moved, monkeypatch):
    real, other = workspace.constraints, {FIRST: {"ray": "0.1"}}
    monkeypatch.setattr(workspace, "constraints", lambda p, root: real(p, root) | other.get(p, {}))
    found = moved()
    assert f"thorough-{FIRST}(cluster)" in found
    assert not matching(found, "*(kernels)", "*(optim)", "*-3.12*")


@pytest.mark.thorough
def test_a_session_of_the_noxfile_reaches_its_check(moved):
    text = '    run_marked(session, "triton", '
    assert moved("noxfile.py", text, f"    print()\n{text}") == {"triton"}


@pytest.mark.thorough
def test_an_interpreter_reaches_its_checks(moved, base, monkeypatch):
    real = changed.interpreter
    monkeypatch.setattr(changed, "interpreter", lambda p: "3.12.99" if p == SECOND else real(p))
    whole = {name for name, check in base[1].items() if check.python == SECOND}
    found = moved()
    assert found
    assert found <= whole
    assert {name for name in found if SECOND in name} == found


@pytest.mark.costly("it computes all keys")
def test_the_record_itself_is_no_input(base):
    assert all(reach.RECORD not in check.paths for check in base[1].values())


def test_every_check_has_inputs_and_every_edge_a_file(base):
    assert all(check.paths for check in base[1].values())
    tree = reach.Tree()
    names = list(base[0])
    for path, patterns in tree.settings["edges"].items():
        assert path in tree.files, path
        assert all(fnmatch.filter(names, pattern) for pattern in patterns), path
