# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The server of ranks, without a daemon: forks, exits, the end of its connection."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from dovetail_cluster.run.server import preload, send_request
from dovetail_cluster.wire import read_frame

# A child that says its process id and what it inherits, then waits for a word and exits with it.
PROGRAM = """
import os, socket, sys
from dovetail_cluster.run.server import Server

def run(sock):
    print("printed", flush=True)
    sock.sendall(b"%d %d\\n" % (os.getpid(), os.getpgid(0)))
    os._exit(int(sock.recv(16) or b"1"))

Server(socket.socket(fileno=int(sys.argv[1])), run).serve()
"""


class Forked:
    """A child of the server, as its daemon sees it."""

    def __init__(self, server: socket.socket, number: int):
        self.sock, theirs = socket.socketpair()
        self.output, output = os.pipe()
        stacks = os.open(os.devnull, os.O_WRONLY)
        files = [theirs.detach(), output, stacks]
        send_request(server, {"fork": number}, files)
        for file in files:
            os.close(file)
        self.sock.settimeout(120)

    def ids(self) -> tuple[int, ...]:
        return tuple(map(int, self.sock.recv(64).split()))

    def close(self) -> None:
        self.sock.close()
        os.close(self.output)


@pytest.fixture
def server():
    own, theirs = socket.socketpair()
    own.settimeout(120)
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(theirs.fileno())], pass_fds=[theirs.fileno()]
    )
    theirs.close()
    yield own
    own.close()
    assert process.wait(120) == 0


def answer(server: socket.socket) -> dict:
    return json.loads(read_frame(server))


def test_a_child_has_its_own_group_and_its_exit_is_told(server):
    child = Forked(server, 7)
    pid, group = child.ids()
    assert group == pid
    assert answer(server) == {"forked": 7, "pid": pid}
    assert os.read(child.output, 64) == b"printed\n"
    child.sock.sendall(b"42")
    assert answer(server) == {"ended": 7, "code": 42}
    child.close()


def test_a_signal_reaches_the_child_that_was_meant(server):
    children = [Forked(server, number) for number in (1, 2)]
    for child in children:
        child.ids()
    answer(server), answer(server)
    send_request(server, {"signal": int(signal.SIGKILL), "to": 2, "group": True}, [])
    assert answer(server) == {"ended": 2, "code": -signal.SIGKILL}
    send_request(server, {"signal": int(signal.SIGKILL), "to": 2, "group": True}, [])  # none now
    children[0].sock.sendall(b"0")
    assert answer(server) == {"ended": 1, "code": 0}
    for child in children:
        child.close()


def test_children_end_with_the_connection(server):
    child = Forked(server, 1)
    pid, _ = child.ids()
    server.close()
    assert child.sock.recv(1) == b""  # it has ended without a word
    end = time.monotonic() + 120
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < end:
        time.sleep(0.01)
    assert not os.path.exists(f"/proc/{pid}")
    child.close()


def test_a_preload_that_fails_or_exits_is_named(tmp_path, monkeypatch):
    assert preload(["json", "base64"]) is None
    assert "preloaded module no_such_module" in (preload(["json", "no_such_module"]) or "")
    (tmp_path / "module_that_exits.py").write_text("raise SystemExit(1)")
    monkeypatch.syspath_prepend(tmp_path)
    assert "preloaded module module_that_exits" in (preload(["module_that_exits"]) or "")
