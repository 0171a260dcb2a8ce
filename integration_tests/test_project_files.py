# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Files beside the code that repeat a fact: hooks, templates, the table of support."""

import re
import tomllib

import pytest
import yaml

import workspace

pytestmark = pytest.mark.once

ROOT = workspace.ROOT


def test_pre_commit_runs_the_tested_ruff_and_scripts_that_exist():
    ruff, local = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    for python in workspace.PYTHONS:
        assert ruff["rev"] == f"v{workspace.constraints(python)['ruff']}"
    for hook in local["hooks"]:
        assert (ROOT / hook["entry"].removeprefix("python3 ")).is_file()


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
