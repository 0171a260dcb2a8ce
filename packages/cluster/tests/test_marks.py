# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Processes that are left: children of children too, and none from outside the block."""

import os
import subprocess
import sys

import pytest

from dovetail_cluster.marks import marked_processes

CHILD = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "import sys; print(1, flush=True); sys.stdin.read()"])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc, which Linux has")
def test_a_grandchild_is_found_until_it_ends():
    line = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(line, stdin=subprocess.PIPE) as other:
        with marked_processes() as left:
            assert left() == []
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            with subprocess.Popen([sys.executable, "-c", CHILD], **pipes) as child:
                assert child.stdout.readline() == b"1\n"
                child.wait(120)
                (grandchild,) = left()
                assert grandchild not in (os.getpid(), child.pid, other.pid)
                child.stdin.close()
                assert child.stdout.read() == b""  # the grandchild has closed its end
        other.stdin.close()
    assert not [name for name in os.environ if name.startswith("DOVETAIL_CLUSTER_MARK_")]
