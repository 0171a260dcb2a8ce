# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The wheels that the sessions share: built once, and anew after a change."""

import subprocess
from pathlib import Path

import pytest

import wheels
import workspace

pytestmark = pytest.mark.once

# In place of uv: logs its calls, and writes an empty wheel.
BUILD = """#!/bin/sh
for folder; do :; done
mkdir -p "$folder"
echo built >> "{log}"
[ ! -e "{fail}" ] || exit 1
touch "$folder/it-1-py3-none-any.whl"
"""


@pytest.fixture
def build(tmp_path, monkeypatch):
    """The number of calls of a stand-in for uv, which fails while the file `build.fail` exists."""
    log, uv = tmp_path / "log", tmp_path / "uv"

    def calls():
        return len(log.read_text().splitlines())

    calls.fail = tmp_path / "fail"
    uv.write_text(BUILD.format(log=log, fail=calls.fail))
    uv.chmod(0o755)
    monkeypatch.setattr(wheels, "UV", str(uv))
    monkeypatch.setattr(wheels, "FOLDER", tmp_path / "wheels")
    return calls


def test_a_member_is_built_once_until_one_of_its_files_changes(repository: Path, build):
    members = workspace.members(repository)
    first = wheels.built(members["data"])
    assert first.is_file()
    assert wheels.built(members["data"]) == first
    assert build() == 1
    assert wheels.built(members["optim"]) != first
    (repository / "packages" / "data" / "__pycache__").mkdir()
    (repository / "packages" / "data" / "__pycache__" / "it.pyc").touch()  # git ignores it
    assert wheels.built(members["data"]) == first
    (repository / "packages" / "data" / "changes" / "2.feature.md").unlink()
    second = wheels.built(members["data"])
    assert build() == 3
    assert second.is_file()
    assert not first.exists()  # no wheel of an older version is left


def test_a_build_that_failed_leaves_nothing_for_the_next(repository: Path, build):
    member = workspace.members(repository)["data"]
    build.fail.touch()
    with pytest.raises(subprocess.CalledProcessError):
        wheels.built(member)
    build.fail.unlink()
    assert wheels.built(member).is_file()
    assert build() == 2
