# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A daemon's hold on a process, played by the test: output, stacks, messages."""

import os
import queue
import socket

import pytest

from dovetail_cluster.run.child import Child
from dovetail_cluster.run.messages import Lines
from dovetail_cluster.wire import Link


@pytest.fixture
def child():
    """The child, the descriptors of its process, what it has sent, and what the log got."""
    received, logged = queue.SimpleQueue(), queue.SimpleQueue()
    near, far = (Link(sock) for sock in socket.socketpair())
    far.start(logged.put, lambda why: None)
    near.start(lambda message: None, lambda why: None)
    child = Child(3, "first", received.put)
    files = [os.dup(file) for file in child.files]
    child.start("rank 1", near, log=True)
    yield child, files, received, logged
    near.close()
    far.close()


def test_lines_are_whole_and_the_last_needs_no_end(child):
    held, (sock, output, stacks), _, logged = child
    os.write(output, "a\nbé"[:3].encode())
    assert logged.get(timeout=120) == Lines("rank 1", "a")
    os.write(output, "é\nc".encode())
    assert logged.get(timeout=120) == Lines("rank 1", "bé")
    for file in (sock, output, stacks):
        os.close(file)
    assert logged.get(timeout=120) == Lines("rank 1", "c")
    held.close()


def test_lines_of_gloo_are_dropped_and_no_others(child):
    held, (sock, output, stacks), _, logged = child
    line = "[Gloo] Rank 0 is connected to 12 peer ranks. Expected number of connected peer ranks"
    os.write(output, f"{line} is : 12\na\n{line} is : 12\n".encode())
    assert logged.get(timeout=120) == Lines("rank 1", "a")
    os.write(output, f"{line} is : 12\n".encode())
    others = f"{line} is : \nsaid: {line} is : 12\n[Gloo] failed\n\nb"
    os.write(output, f"{others}\n".encode())
    assert logged.get(timeout=120) == Lines("rank 1", others)
    for file in (sock, output, stacks):
        os.close(file)
    held.close()


def test_messages_before_the_end_are_received_before_close_returns(child):
    held, (sock, output, stacks), received, _ = child
    process = Link(socket.socket(fileno=sock))
    first = queue.SimpleQueue()
    process.start(first.put, lambda why: None)
    assert first.get(timeout=120) == "first"
    held.send("second")
    assert first.get(timeout=120) == "second"
    for i in range(100):
        process.send(i)
    process.close(flush_s=60.0)
    os.close(output)
    os.close(stacks)
    held.close()
    assert [received.get(timeout=0) for _ in range(100)] == list(range(100))


def test_stacks_are_those_written_after_the_signal(child):
    held, (sock, output, stacks), _, _ = child
    os.write(stacks, b"an older dump\n")
    assert held.stacks(lambda: os.write(stacks, b"Thread 0x1\n")) == "Thread 0x1\n"
    assert held.stacks(lambda: None) == ""
    for file in (sock, output, stacks):
        os.close(file)
    held.close()
