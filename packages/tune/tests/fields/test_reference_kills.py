# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

PROGRAM = Path(__file__).parent.parent / "programs" / "reference_kills.py"


# A launch takes about 1.5 CPU seconds. `benchmarks/reference_kills.py` makes hundreds.
@pytest.mark.thorough("it kills processes")
@pytest.mark.capability("killed preference runs that resume to the same bits")
@pytest.mark.parametrize("kills", [3, pytest.param(10, marks=pytest.mark.slow)])
def test_a_killed_run_has_the_losses_of_a_whole_run(tmp_path, kills):
    done = subprocess.run(
        [sys.executable, PROGRAM, tmp_path / "runs", str(kills), str(kills)],
        env={
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "--xla_backend_optimization_level=0",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"kills: {kills}\n" in done.stdout
