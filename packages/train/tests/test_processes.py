# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Real processes over jax.distributed, two devices each."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import forced_devices

PROGRAMS = Path(__file__).parent / "programs"


def _train(count, *directory, program="processes.py"):
    """Returns the JSON of process 0."""
    with socket.socket() as held:
        # Nobody else gets the port meanwhile; the coordinator may, since it sets the option too.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))
        port = str(held.getsockname()[1])
        running = [
            subprocess.Popen(
                [
                    sys.executable,
                    str(PROGRAMS / program),
                    str(me),
                    str(count),
                    port,
                    *map(str, directory),
                ],
                env=forced_devices.environment(2 if count > 1 else 1),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for me in range(count)
        ]
        results = [process.communicate(timeout=600) for process in running]
    for process, (_, errors) in zip(running, results, strict=True):
        assert process.returncode == 0, errors[-3000:]
    return json.loads(results[0][0].splitlines()[-1])  # after what Gloo prints


def test_two_processes_with_their_own_rows_train_as_one_does():
    one, two = _train(1), _train(2)
    assert len(one) == 4
    # Sums over 4 devices are in another order.
    np.testing.assert_allclose(two, one, rtol=2e-5)


@pytest.mark.slow
def test_two_processes_resume_from_one_store(tmp_path):
    one, two = _train(1, tmp_path / "one"), _train(2, tmp_path / "two")
    assert len(one) == 6
    np.testing.assert_allclose(two, one, rtol=2e-5)


def test_pairs_are_not_torn_by_microbatches_devices_or_processes(on_eight_devices):
    losses = on_eight_devices("pairs.py") | _train(2, program="pairs.py")
    whole = losses.pop("one/1")
    assert whole[-1] < whole[0]
    assert sorted(losses) == ["both", "data", "one/4", "processes"]
    for name, split in losses.items():
        np.testing.assert_allclose(split, whole, rtol=2e-5, err_msg=name)
