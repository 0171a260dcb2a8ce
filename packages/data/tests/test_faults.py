# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A sample of the campaign benchmarks/faults.py: twenty flips of each format, and twenty kills."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1]
SCRIPTS = PACKAGE.parents[1] / "scripts"


@pytest.mark.thorough
def test_no_flip_is_silent_and_no_kill_changes_a_byte():
    run = subprocess.run(
        [sys.executable, PACKAGE / "benchmarks" / "faults.py", "--part", "0.02"],
        env={**os.environ, "PYTHONPATH": str(SCRIPTS)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stderr == ""
    *flips, kills = map(json.loads, run.stdout.splitlines())
    assert len(flips) == 8
    for line in flips:
        assert (line["flips"], line["silent"]) == (20, 0)
        assert line["named"] >= 1
    assert kills["kills"] >= 20
    assert kills["equal"] == kills["corpora"]
