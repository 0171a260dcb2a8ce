# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The wheels that the sessions share: built once, and anew after a change."""

import subprocess

import pytest

import wheels
import workspace

pytestmark = pytest.mark.once

# In place of uv: logs its calls, and writes an empty wheel unless the file `fail` exists.
BUILD = """#!/bin/sh
for folder; do :; done
mkdir -p "$folder"
echo built >> "{home}/log"
[ ! -e "{home}/fail" ] && touch "$folder/it-1-py3-none-any.whl"
"""


def test_a_member_is_built_once_until_one_of_its_files_changes(repository, tmp_path, monkeypatch):
    uv = tmp_path / "uv"
    uv.write_text(BUILD.format(home=tmp_path))
    uv.chmod(0o755)
    monkeypatch.setattr(wheels, "UV", str(uv))
    monkeypatch.setattr(wheels, "FOLDER", tmp_path / "wheels")
    members = workspace.members(repository)
    (tmp_path / "fail").touch()
    with pytest.raises(subprocess.CalledProcessError):
        wheels.built(members["data"])
    (tmp_path / "fail").unlink()
    assert (first := wheels.built(members["data"])).is_file()
    ignored = repository / "packages/data/__pycache__/it.pyc"
    ignored.parent.mkdir()
    ignored.touch()
    assert wheels.built(members["data"]) == first
    assert wheels.built(members["optim"]) != first
    (repository / "packages/data/changes/2.feature.md").unlink()
    assert wheels.built(members["data"]).is_file()
    assert not first.exists()  # no wheel of an older version is left
    assert (tmp_path / "log").read_text() == 4 * "built\n"
