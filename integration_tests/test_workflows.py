# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The GitHub workflows: pinned, with the least permissions, and true to the noxfile."""

import re
import subprocess
import sys

import pytest
import yaml

import workspace

pytestmark = pytest.mark.once

FILES = sorted((workspace.ROOT / ".github" / "workflows").glob("*.yml"))
WORKFLOWS = {file.stem: yaml.safe_load(file.read_text()) for file in FILES}
JOBS = {(f, name): job for f, w in WORKFLOWS.items() for name, job in w["jobs"].items()}
STEPS = [step for job in JOBS.values() for step in job["steps"]]
WRITES = {
    ("nightly", "report"): {"issues": "write"},
    ("release", "publish"): {"id-token": "write"},
    ("docs", "publish"): {"id-token": "write", "pages": "write"},
}


def test_actions_are_pinned_have_the_least_permissions_and_run_no_outsiders_text():
    for file in FILES:
        for action in re.findall(r"uses: (.*)", file.read_text()):
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action)
    assert all(w["permissions"] == {"contents": "read"} for w in WORKFLOWS.values())
    assert {n: j["permissions"] for n, j in JOBS.items() if "permissions" in j} == WRITES
    checkouts = [s for s in STEPS if s.get("uses", "").startswith("actions/checkout@")]
    assert all(s["with"]["persist-credentials"] is False for s in checkouts)
    # A branch name or a title is text that anybody writes: it comes in by the environment.
    for step in STEPS:
        for name in re.findall(r"\$\{\{\s*([\w.]+)", step.get("run", "")):
            assert name.startswith("matrix."), name


def test_every_night_measures_every_package_and_sessions_exist():
    jobs = WORKFLOWS["nightly"]["jobs"]
    assert jobs["speed"]["strategy"]["matrix"]["package"] == list(workspace.members())
    assert set(jobs["report"]["needs"]) == jobs.keys() - {"report"}
    line = [sys.executable, "-m", "nox", "--noxfile", str(workspace.ROOT / "noxfile.py"), "--list"]
    listed = subprocess.run(line, check=True, capture_output=True, text=True).stdout
    sessions = set(re.findall(r"^[*-] (\S+)", listed, re.MULTILINE))
    stems = sessions | {s.split("(")[0] for s in sessions} | {s.split("-")[0] for s in sessions}
    named = [m for s in STEPS for m in re.findall(r"nox -s \"?([\w.-]+)", s.get("run", ""))]
    matrices = [job.get("strategy", {}).get("matrix", {}) for job in JOBS.values()]
    named += [i["session"] for m in matrices for i in m.get("include", [])]
    assert {n.rstrip("-") for n in named} <= stems
