# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Every example runs as it is printed."""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
EXAMPLES = [
    f for f in sorted(HERE.glob("*.py")) if not f.stem.startswith(("test_", "conftest"))
]
HANG_S = 900  # only an example that hangs takes this long


def run(program: str, folder: Path) -> None:
    """Run in an empty folder, in a process of its own; show the output of a failure."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda f: f.stem)
def test_example_runs(file, tmp_path):
    run(file.read_text(encoding="utf-8"), tmp_path)
