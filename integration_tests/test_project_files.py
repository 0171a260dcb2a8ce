# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What the project shows beside its code: policies, templates, hooks, updates."""

import re
import tomllib

import pytest
import yaml

import workspace

pytestmark = pytest.mark.once

ROOT = workspace.ROOT
GITHUB = ROOT / ".github"


def test_pre_commit_runs_the_tested_ruff_and_scripts_that_exist():
    repos = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    (ruff,) = [r for r in repos if r["repo"] != "local"]
    for python in workspace.PYTHONS:
        assert ruff["rev"] == f"v{workspace.constraints(python)['ruff']}"
    assert [h["id"] for h in ruff["hooks"]] == ["ruff-check", "ruff-format"]
    (local,) = [r for r in repos if r["repo"] == "local"]
    for hook in local["hooks"]:
        assert (ROOT / hook["entry"].removeprefix("python3 ")).is_file()


def test_dependabot_reads_folders_that_exist():
    updates = yaml.safe_load((GITHUB / "dependabot.yml").read_text())["updates"]
    folders = {u["package-ecosystem"]: ROOT / u["directory"].lstrip("/") for u in updates}
    assert set(folders) == {"github-actions", "pip"}
    assert list(folders["pip"].glob("*.txt"))


def test_the_template_of_a_bug_lists_the_packages():
    form = yaml.safe_load((GITHUB / "ISSUE_TEMPLATE" / "bug.yml").read_text())
    (dropdown,) = [field for field in form["body"] if field["type"] == "dropdown"]
    assert dropdown["attributes"]["options"] == list(workspace.members())


@pytest.mark.parametrize("name", ["bug.yml", "feature.yml"])
def test_a_template_is_a_form(name):
    form = yaml.safe_load((GITHUB / "ISSUE_TEMPLATE" / name).read_text())
    assert {"name", "description", "body"} <= form.keys()
    ids = [field["id"] for field in form["body"]]
    assert len(ids) == len(set(ids))


def test_security_names_no_address():
    text = (ROOT / "SECURITY.md").read_text()
    assert "private vulnerability reporting" in text
    assert "@" not in text
    assert "://" not in text


def test_the_table_of_support_is_that_of_the_constraints():
    text = (ROOT / "docs" / "support.md").read_text()
    rows = re.findall(r"^\| (3\.\d+) \|.*\| (\S+) \|$", text, re.MULTILINE)
    pythons = (*workspace.PYTHONS, *workspace.NEWER)
    assert rows == [(python, workspace.constraints(python)["jax"]) for python in pythons]
    floor = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pyright"]["pythonVersion"]
    assert rows[0][0] == floor
