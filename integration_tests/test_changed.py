# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

import json
import subprocess
import sys

import pytest

import changed
import workspace

pytestmark = pytest.mark.once

ALL = sorted(workspace.members())


def test_a_package_concerns_itself_and_those_that_depend_on_it():
    assert changed.concerned(["packages/data/src/dovetail_data/pack.py"]) == ["data", "stack"]
    assert changed.concerned(["packages/stack/README.md"]) == ["stack"]
    assert changed.concerned([]) == []


def test_a_root_file_concerns_all():
    assert changed.concerned(["packages/data/README.md", "constraints/py311.txt"]) == ALL
    assert changed.concerned(["packages/README.md"]) == ALL


def test_the_command_reads_git(repository):
    line = [sys.executable, str(repository / "scripts" / "changed.py")]

    def ask(base: str) -> list[str]:
        done = subprocess.run([*line, base], check=True, capture_output=True, text=True)
        return json.loads(done.stdout)

    (repository / "packages" / "models" / "CHANGELOG.md").write_text("changed\n")
    subprocess.run(["git", "-C", str(repository), "commit", "-qam", "Change one"], check=True)
    assert ask("HEAD~1") == ["models", "stack"]
    assert ask("0" * 40) == ALL
