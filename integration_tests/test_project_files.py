# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Files beside the code that repeat a fact: metadata, hooks, templates, the table of support."""

import re
import tomllib

import pytest
import yaml

import copies
import workspace

pytestmark = pytest.mark.once

ROOT = workspace.ROOT
PROJECTS = sorted(f for p in ("", "native/") for f in ROOT.glob(f"packages/*/{p}pyproject.toml"))


def test_the_copies_of_shared_files_are_equal():
    for original, others in copies.copies().items():
        assert len(others) > 1, f"{original} is needed by one package at most"
        for copy in others:
            assert copy.read_bytes() == original.read_bytes(), "run python scripts/copies.py"


def test_pre_commit_runs_the_tested_ruff_and_scripts_that_exist():
    ruff, local = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    for python in workspace.PYTHONS:
        assert ruff["rev"] == f"v{workspace.constraints(python)['ruff']}"
    for hook in local["hooks"]:
        assert (ROOT / hook["entry"].removeprefix("python3 ")).is_file()


SHARED = re.compile(
    r"^# Shared by all packages: .*?^# End of the shared lines\.$", re.DOTALL | re.MULTILINE
)


@pytest.mark.parametrize("file", PROJECTS, ids=lambda f: f.parent.name)
def test_packages_share_metadata_and_their_page_on_an_index_has_no_dead_link(file):
    first, *_ = PROJECTS
    assert SHARED.findall(file.read_text()) == SHARED.findall(first.read_text())
    assert (file.parent / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    document, page = tomllib.loads(file.read_text()), (file.parent / "README.md").read_text()
    owner = file.parent.parent if file.parent.name == "native" else file.parent
    assert document["project"]["version"] == workspace.members()[owner.name].version
    hook = document["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    for rule in hook["substitutions"]:
        page = re.sub(rule["pattern"], rule["replacement"], page)  # as hatch-fancy-pypi-readme does
    links = re.findall(r"\]\(([^)\s]+)\)", page)
    assert [link for link in links if not link.startswith(("https://", "#"))] == []


def test_the_extras_of_the_meta_package_are_versioned_by_its_pins():
    meta = workspace.members()[workspace.META]
    pinned = {d.name for d in meta.dependencies if d.specifier.startswith("==")}
    extras = {name: needs for name, needs in meta.extras.items() if name != "notebooks"}
    needs = [workspace.parse(need) for needs in extras.values() for need in needs]
    assert [need.name for need in needs if need.specifier or need.name not in pinned] == []


def test_what_opens_the_notebooks_is_in_the_tested_set():
    needs = map(workspace.parse, workspace.members()[workspace.META].extras["notebooks"])
    names = {need.name for need in needs}
    assert {"ipykernel", "jupyterlab", "matplotlib"} <= names
    assert all(names <= workspace.constraints(python).keys() for python in workspace.PYTHONS)


def test_the_template_of_a_bug_lists_the_packages():
    form = yaml.safe_load((ROOT / ".github/ISSUE_TEMPLATE/bug.yml").read_text())
    (dropdown,) = [field for field in form["body"] if field["type"] == "dropdown"]
    assert dropdown["attributes"]["options"] == list(workspace.members())


def test_the_table_of_support_is_that_of_the_constraints():
    text = (ROOT / "docs" / "support.md").read_text()
    rows = re.findall(r"^\| (3\.\d+) \|.*\| (\S+) \|$", text, re.MULTILINE)
    pythons = (*workspace.PYTHONS, *workspace.NEWER)
    assert rows == [(python, workspace.constraints(python)["jax"]) for python in pythons]
    floor = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pyright"]["pythonVersion"]
    assert rows[0][0] == floor
