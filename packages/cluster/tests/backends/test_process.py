# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A daemon's process: exit codes, signals, and that it dies with its starter."""

import os
import queue
import signal
import subprocess
import sys
import textwrap

import pytest

from dovetail_cluster.backends.process import Process


def test_the_exit_code_is_polled_and_told():
    codes = queue.SimpleQueue()
    process = Process(["-c", "import sys; sys.exit(7)"], os.environ, ended=codes.put)
    assert codes.get(timeout=120) == 7
    assert process.wait() == process.poll() == 7


def test_environment_and_directory(tmp_path):
    body = "import os; open('out', 'w').write(os.environ['A'] + str('HOME' in os.environ))"
    assert Process(["-c", body], {"A": "b"}, directory=str(tmp_path)).wait() == 0
    assert (tmp_path / "out").read_text() == "bFalse"


def test_signal_and_kill(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    body = f"""
        import os, signal
        out = open({str(tmp_path / "pipe")!r}, "w")
        signal.signal(signal.SIGTERM, lambda number, frame: os.write(out.fileno(), b"term\\n"))
        print("up", file=out, flush=True)
        while True:
            signal.pause()
    """
    process = Process(["-c", textwrap.dedent(body)], os.environ)
    with open(tmp_path / "pipe") as lines:
        assert lines.readline() == "up\n"
        assert process.poll() is None
        process.signal(signal.SIGTERM)
        assert lines.readline() == "term\n"
        process.kill()
        assert process.poll() == -signal.SIGKILL
        process.kill()  # does nothing now
        assert lines.read() == ""


def test_a_directory_that_is_not_there_raises(tmp_path):
    with pytest.raises(FileNotFoundError):
        Process(["-c", ""], os.environ, directory=str(tmp_path / "none"))


@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl, which Linux has")
def test_it_dies_with_the_process_that_started_it():
    body = """
        import os, sys, time
        from dovetail_cluster.backends.process import Process
        # The daemon keeps standard output open as long as it lives.
        body = "import time; print('up', flush=True); time.sleep(600)"
        process = Process(["-c", body], os.environ)
        process.wait()
    """
    command = [sys.executable, "-c", textwrap.dedent(body)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as starter:
        assert starter.stdout.readline() == b"up\n"
        starter.kill()
        assert starter.stdout.read() == b""
