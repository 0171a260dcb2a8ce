# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A sample of the campaign benchmarks/kills.py."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1]
SCRIPTS = PACKAGE.parents[1] / "scripts"


@pytest.mark.thorough
def test_a_run_that_is_killed_at_any_moment_reads_and_goes_on():
    program = [sys.executable, PACKAGE / "benchmarks" / "kills.py", "--kills", "5", "--seed", "1"]
    environment = {**os.environ, "PYTHONPATH": str(SCRIPTS)}
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    line = json.loads(done.stdout)
    assert (line["kills"], line["while_launching"] + line["while_writing"]) == (5, 5)
    assert line["steps"] > 0
