# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A rank's process is tested with its daemon; here are its errors and its port."""

import os
import pickle
import socket
import subprocess
import sys

import cloudpickle

from dovetail_cluster.events import PORT_TAKEN, Raised
from dovetail_cluster.run.messages import Job
from dovetail_cluster.run.rank import pickled
from dovetail_cluster.wire import Link, write_frame

PROGRAM = """
import socket, sys
from dovetail_cluster.run.rank import serve
serve(socket.socket(fileno=int(sys.argv[1])))
"""


class UnreadableError(Exception):
    """Pickles, but its constructor takes another number of arguments."""

    def __init__(self, first, second):
        super().__init__(first)


def run(job: Job, receive) -> int:
    """Runs a rank with the job. Returns its exit code."""
    own, theirs = socket.socketpair()
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        env=environment,
    )
    theirs.close()
    write_frame(own, pickle.dumps(job))
    link = Link(own)
    link.start(lambda message: receive(message, link), lambda why: None)
    code = process.wait(120)
    link.close()
    return code


def test_an_exception_that_cannot_be_read_again_is_left_out():
    assert isinstance(pickle.loads(pickled(KeyError("x"))), KeyError)
    assert pickled(UnreadableError(1, 2)) is None


def test_a_taken_port_is_told_by_the_exit_code():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        program = cloudpickle.dumps((print, ()))
        job = Job(0, 0, 0, 1, address, "127.0.0.1", program)
        assert run(job, lambda message, link: None) == PORT_TAKEN


def test_a_failure_to_join_is_an_exception_of_the_rank():
    received = []

    def receive(message, link):
        received.append(message)
        link.close()  # a rank without its daemon ends

    job = Job(0, 0, 0, 1, "no address", "127.0.0.1", cloudpickle.dumps((print, ())))
    assert run(job, receive) == 1
    assert isinstance(received[0], Raised)
    assert received[0].kind == "ValueError"
    assert "must be HOST:PORT, got 'no address'" in received[0].message
