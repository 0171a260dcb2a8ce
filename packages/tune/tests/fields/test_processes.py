# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import forced_devices

PROGRAM = Path(__file__).parent.parent / "programs" / "own_rows.py"


@pytest.mark.slow
def test_two_processes_score_their_own_rows_into_one_folder(tmp_path):
    with socket.socket() as held:
        # Nobody else gets the port meanwhile; the coordinator may, since it sets the option too.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))
        running = [
            subprocess.Popen(
                [sys.executable, PROGRAM, str(me), str(held.getsockname()[1]), tmp_path],
                env=forced_devices.environment(1),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for me in range(2)
        ]
        results = [process.communicate(timeout=300) for process in running]
    for output, errors in results:
        assert output.endswith("ok\n"), errors[-3000:]  # after what Gloo prints
