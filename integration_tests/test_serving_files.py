# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The Dockerfile and the systemd unit of examples/serving: their commands start and stop a server.

Neither Docker nor systemd is needed. The command line of each runs as a process, with another
directory and free ports in place of theirs, and is stopped by the signal that both send.
"""

import contextlib
import json
import random
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from dovetail_serve.testing import save_mlp

LIMIT_S = 300  # only a hang takes so long
FILES = Path(__file__).resolve().parent.parent / "examples/serving"


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repository")
    save_mlp(folder / "mlp" / "1")
    return folder


def test_the_commands_of_the_image_serve_and_end_with_0(repository):
    text = (FILES / "Dockerfile").read_text()
    health, entry, options = map(json.loads, re.findall(r"(\[.*\])$", text, re.M))
    http, grpc = free_port(), free_port()
    line = [*entry, *options]
    ports = {"8000": str(http), "8001": str(grpc), "/repo": str(repository)}
    assert ports.keys() <= set(line)
    line = [ports.get(part, part) for part in line]
    line[line.index("0.0.0.0")] = "127.0.0.1"
    assert health[0] == line[0] == "python"
    check = [sys.executable, *health[1:]]
    assert ":8000/" in check[-1]
    check[-1] = check[-1].replace(":8000/", f":{http}/")
    assert run([sys.executable, *line[1:]], http, check=check) == 0


def test_the_unit_serves_and_ends_with_0(repository):
    text = (FILES / "dovetail-serve.service").read_text()
    line = shlex.split(re.search(r"^ExecStart=(.*)$", text, re.M)[1])
    assert line[1:4] == ["-m", "dovetail_serve", "serve"]
    line[0], line[line.index("/srv/models")] = sys.executable, str(repository)
    http = free_port()
    assert run([*line, "--http", str(http)], http) == 0
    seconds = int(re.search(r"^TimeoutStopSec=(\d+)$", text, re.M)[1])
    assert seconds > int(line[line.index("--grace") + 1])


def run(line, port, *, check=None):
    """Starts a server, waits until it is ready, stops it by SIGTERM; returns its exit code."""
    process = subprocess.Popen(line)
    try:
        until = time.monotonic() + LIMIT_S
        while not ready(port):
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        if check:
            subprocess.run(check, check=True)
        process.send_signal(signal.SIGTERM)
        return process.wait(timeout=LIMIT_S)
    finally:
        process.kill()
        process.wait()


def ready(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready") as answer:
            return answer.status == 200
    except OSError:
        return False


def free_port():
    """A port that stays free: below those that a system hands out by itself."""
    while True:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
