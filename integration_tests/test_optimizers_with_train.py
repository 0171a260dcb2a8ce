# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The trainer takes every optimizer of dovetail-optim, on one device and on eight alike."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture(scope="module")
def found():
    program = Path(__file__).parent / "programs" / "optimizers_sharded.py"
    flags = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    done = subprocess.run(
        [sys.executable, str(program)],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_it_learns(found):
    # From the third on: the first makes SOAP's bases, and the second is its first of warmup.
    losses = found["one"]["losses"]
    assert losses[3] < losses[2] < losses[0]


@pytest.mark.parametrize("case", ["eight", "derived", "zero"])
def test_eight_devices_give_the_losses_of_one(found, case):
    # Sums of float32 in another order, after which a code of 8 bits may be its neighbour (6 %).
    np.testing.assert_allclose(found[case]["losses"], found["one"]["losses"], rtol=1e-3)


def test_state_is_in_as_many_pieces_as_its_parameter(found):
    # Of three kernels that are split along their inputs: a momentum; M, V and the bases of both
    # sides; codes of two moments. The bases of the outputs have no axis that is split.
    pieces = {case: x["pieces"] for case, x in found.items()}
    assert pieces["one"] == [1] * 9
    assert pieces["derived"] == [1] * 2 + [4] * 7
    assert pieces["zero"] == [2] * 2 + [8] * 7
    # The trainer's own rule knows the axes of what is shaped as a parameter alone.
    assert pieces["eight"] == [1] * 4 + [4] * 5
