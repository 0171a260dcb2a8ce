# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The GitHub workflows: pinned, least permissions, bounded, and true to the noxfile."""

import re
import subprocess
import sys

import pytest
import yaml

import workspace

pytestmark = pytest.mark.once

FILES = sorted((workspace.ROOT / ".github" / "workflows").glob("*.yml"))
WRITES = {
    ("nightly", "report"): {"issues": "write"},
    ("release", "publish"): {"id-token": "write"},
    ("docs", "publish"): {"id-token": "write", "pages": "write"},
}


def steps(workflow: dict) -> list[dict]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


@pytest.fixture(params=FILES, ids=lambda f: f.stem)
def file(request):
    return request.param


@pytest.fixture
def workflow(file):
    return yaml.safe_load(file.read_text())


def test_there_are_four():
    assert [f.stem for f in FILES] == ["docs", "nightly", "release", "test"]


def test_actions_are_pinned_by_commit_with_their_version_beside(file):
    uses = re.findall(r"uses: (.*)", file.read_text())
    assert uses
    for action in uses:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action)


def test_permissions_are_the_least(file, workflow):
    assert workflow["permissions"] == {"contents": "read"}
    found = {
        (file.stem, n): j["permissions"] for n, j in workflow["jobs"].items() if "permissions" in j
    }
    assert found == {k: v for k, v in WRITES.items() if k[0] == file.stem}


def test_every_job_ends_and_older_runs_give_way(workflow):
    assert "cancel-in-progress" in workflow["concurrency"]
    for job in workflow["jobs"].values():
        assert 0 < job["timeout-minutes"] <= 60
        machines = job["strategy"]["matrix"]["os"] if "matrix.os" in job["runs-on"] else []
        assert {*machines, job["runs-on"]} <= {"ubuntu-24.04", "macos-15", "${{ matrix.os }}"}


def test_checkouts_keep_no_credentials(workflow):
    checkouts = [s for s in steps(workflow) if s.get("uses", "").startswith("actions/checkout@")]
    assert all(s["with"]["persist-credentials"] is False for s in checkouts)


def test_no_expression_of_an_outsider_reaches_a_shell(workflow):
    # A branch name or a title is text that anybody writes: it comes in by the environment.
    for step in steps(workflow):
        for name in re.findall(r"\$\{\{\s*([\w.]+)", step.get("run", "")):
            assert name.startswith("matrix."), name


def test_every_night_measures_every_package():
    (file,) = [f for f in FILES if f.stem == "nightly"]
    jobs = yaml.safe_load(file.read_text())["jobs"]
    assert jobs["speed"]["strategy"]["matrix"]["package"] == list(workspace.members())
    assert set(jobs["report"]["needs"]) == jobs.keys() - {"report"}


def test_nox_sessions_exist(workflow):
    line = [sys.executable, "-m", "nox", "--noxfile", str(workspace.ROOT / "noxfile.py"), "--list"]
    listed = subprocess.run(line, check=True, capture_output=True, text=True).stdout
    sessions = set(re.findall(r"^[*-] (\S+)", listed, re.MULTILINE))
    stems = sessions | {s.split("(")[0] for s in sessions} | {s.split("-")[0] for s in sessions}
    named = [
        m for s in steps(workflow) for m in re.findall(r"nox -s \"?([\w.-]+)", s.get("run", ""))
    ]
    matrices = [j.get("strategy", {}).get("matrix", {}) for j in workflow["jobs"].values()]
    named += [i["session"] for m in matrices for i in m.get("include", [])]
    assert {n.rstrip("-") for n in named} <= stems
