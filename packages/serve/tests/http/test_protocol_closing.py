# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The end of a connection: clients that take nothing, refused ones, and their numbers."""

import asyncio
import contextlib
import socket
import sys

import pytest
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.server import ServerState

from dovetail_serve.http import protocol as protocol_module
from dovetail_serve.http.limits import Limits
from dovetail_serve.http.protocol import limited

POST = b"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: a\r\n"
PAGE = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


BUSY = POST + b"Content-Length: 9\r\n\r\n"


def occupy(served, client):
    """Makes a connection wait for a body. It gives way to no other."""
    before = len(served.web._server.server_state.tasks)
    client.sendall(BUSY)
    served.until(lambda: len(served.web._server.server_state.tasks) > before)


def status_of(client):
    """Reads until the server closes the connection; returns the status of its only answer."""
    first, *others = client.makefile("rb").read().split(b"HTTP/1.1 ")[1:]
    assert not others
    return int(first[:3])


@pytest.mark.thorough
def test_a_client_that_takes_none_of_its_answers_is_dropped(exported, serving):
    limits = Limits(send_s=0.05)
    with serving(exported[0], http={"limits": limits}) as served, served.connect() as client:
        client.settimeout(0.5)
        try:
            for _ in range(40):  # answers of more bytes than the buffers of the kernel hold
                client.sendall(PAGE * 25)
        except OSError:  # dropped already, or not read any more
            pass
        served.until(lambda: not served.web._server.server_state.connections)


class SlowClient:
    """A transport whose client takes bytes between the looks of the timers, `takes` times."""

    def __init__(self, takes):
        self.unsent, self.takes, self.ended = 100, takes, asyncio.Event()
        self.closing = False

    def get_write_buffer_size(self):
        if self.takes:
            self.takes -= 1
            self.unsent -= 1
        return self.unsent

    def get_extra_info(self, name):
        return self

    def getsockopt(self, level, option, size):
        return bytes(size)  # the kernel holds none

    def is_closing(self):
        return self.closing

    def close(self):
        self.closing = True  # and waits for the bytes that are unsent

    def abort(self):
        self.ended.set()


@pytest.mark.parametrize(
    "steps",
    [
        ["pause_writing"],
        ["timeout_keep_alive_handler"],
        ["_close"],
        ["eof_received"],
        ["pause_writing", "_close", "resume_writing"],
    ],
)
def test_a_client_that_takes_its_answer_slowly_is_dropped_after_it_stops(steps):
    async def application(scope, receive, send):
        raise AssertionError("there is no request")

    async def main():
        transport = SlowClient(takes=4)
        config = uvicorn.Config(application, ws="none", lifespan="off", log_config=None)
        protocol = limited(Limits(send_s=0.01), lambda *_: None)(config, ServerState(), {})
        protocol.transport, protocol.flow = transport, FlowControl(transport)
        for step in steps:
            getattr(protocol, step)()
        await transport.ended.wait()
        return transport.takes

    assert asyncio.run(asyncio.wait_for(main(), 120)) == 0


@pytest.mark.thorough
@pytest.mark.parametrize("end", ["idle", "close", "half", "garbage"])
def test_a_client_that_stops_before_the_last_bytes_is_dropped(exported, serving, monkeypatch, end):
    """With less than the high-water mark pending, the loop tells nothing, and `close` waits."""
    monkeypatch.setattr(protocol_module, "_LINGER_S", 0.01)
    limits = Limits(send_s=0.05, keep_alive_s=0.05 if end == "idle" else 1e6)
    with serving(exported[0], http={"limits": limits}) as served, served.connect() as client:
        state = served.web._server.server_state
        served.until(lambda: state.connections)
        transport = next(iter(state.connections)).transport
        served.loop.call_soon_threadsafe(transport.set_write_buffer_limits, 1 << 30)
        client.sendall(PAGE * 2000)  # 21 MB of answers, more than the buffers of the kernel hold
        served.until(lambda: state.total_requests == 2000 and transport.get_write_buffer_size())
        if end == "close":
            client.sendall(PAGE[:-2] + b"Connection: close\r\n\r\n")
        elif end == "half":
            client.shutdown(socket.SHUT_WR)
        elif end == "garbage":
            client.sendall(b"no HTTP\r\n\r\n")
        served.until(lambda: not state.connections)


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what a client has taken")
def test_bytes_that_leave_the_kernel_count_as_taken(exported, serving):
    """The kernel asks for more only after megabytes; the client here reads less between looks."""
    # A second is a long time for this thread to read a few bytes after a look of the timer.
    with serving(exported[0], http={"limits": Limits(send_s=1.0)}) as served:
        with served.connect() as client:
            connections = served.web._server.server_state.connections
            # A kernel acknowledges more after a sixteenth of its buffer is free.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
            protocol, stream = fill_with_answers(served, client), client.makefile("rb")
            for _ in range(2):
                timer = protocol._stalled
                assert len(stream.read(200_000)) == 200_000
                served.until(lambda timer=timer: protocol._stalled is not timer)
                assert protocol in connections
                assert protocol._stalled is not None, "the kernel has asked for more"
        served.until(lambda: not connections)


def fill_with_answers(served, client):
    """Requests more than the buffers of the kernel hold; returns the protocol, which waits."""
    client.sendall(PAGE * 2000)  # 21 MB of answers
    connections = served.web._server.server_state.connections
    served.until(lambda: any(protocol._stalled for protocol in connections))
    return next(iter(connections))


def test_connections_have_a_limit(exported, serving):
    with serving(exported[0], http={"limits": Limits(connections=2)}) as served:
        with served.connect() as first, served.connect() as second:
            for client in (first, second):
                occupy(served, client)
            with served.connect() as client:
                client.sendall(PAGE)
                answer = client.makefile("rb").read()
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"retry-after: 1" in answer
            assert b"at most 2 connections, got one more; reuse" in answer
        served.until(lambda: not served.web._server.server_state.connections)
        assert served.ask("GET", "/v2/health/live").status == 200


@pytest.mark.parametrize("refused", ["no Host", "a long header", "one connection more"])
def test_a_client_that_is_still_sending_reads_the_refusal(exported, serving, refused):
    """More than the buffers of the kernel hold, so a connection closed early is a reset."""
    head, status = {
        "no Host": (b"POST /v2 HTTP/1.1\r\n", 400),
        "a long header": (POST + b"X: " + b"y" * 17_000 + b"\r\n", 431),
        "one connection more": (POST, 503),
    }[refused]
    body = b"x" * (32 << 20)
    length = b"Content-Length: %d\r\n\r\n" % len(body)
    limits = Limits(connections=1)
    with (
        serving(exported[0], http={"limits": limits}) as served,
        contextlib.ExitStack() as stack,
    ):
        if status == 503:
            occupy(served, stack.enter_context(served.connect()))
        client = stack.enter_context(served.connect())
        client.sendall(head + length + body)
        assert status_of(client) == status


@pytest.mark.parametrize("bound", ["_LINGER_S", "_LINGER_BYTES"])
def test_a_refused_connection_is_closed_within_bounds(exported, serving, monkeypatch, bound):
    for name in ("_LINGER_S", "_LINGER_BYTES"):
        monkeypatch.setattr(protocol_module, name, 0.01 if name == bound else 1e6)
    with serving(exported[0]) as served, served.connect() as client:
        client.sendall(b"no HTTP\r\n\r\n")
        assert status_of(client) == 400
        if bound == "_LINGER_BYTES":
            client.sendall(b"more")
        served.until(lambda: not served.web._server.server_state.connections)


@pytest.mark.thorough
def test_refused_connections_have_a_limit_too(exported, serving, monkeypatch):
    monkeypatch.setattr(protocol_module, "_LINGER_S", 1e6)
    with serving(exported[0], http={"limits": Limits(connections=1)}) as served:
        connections = served.web._server.server_state.connections
        with contextlib.ExitStack() as stack:
            occupy(served, stack.enter_context(served.connect()))
            for _ in range(3):
                client = stack.enter_context(served.connect())
                client.sendall(PAGE)
                assert status_of(client) == 503
            served.until(lambda: len(connections) == 2)
        served.until(lambda: not connections)


def test_refused_connections_do_not_keep_clients_out(exported, serving, monkeypatch):
    monkeypatch.setattr(protocol_module, "_LINGER_S", 1e6)
    with serving(exported[0], http={"limits": Limits(connections=1)}) as served:
        connections = served.web._server.server_state.connections
        lingering = served.web._server.config.http.lingering
        for _ in range(2):  # the place of a refused connection is free again after its end
            with contextlib.ExitStack() as stack:
                with served.connect() as first:
                    occupy(served, first)
                    refused = stack.enter_context(served.connect())
                    refused.sendall(PAGE)
                    assert status_of(refused) == 503
                served.until(lambda: connections == lingering)
                assert len(lingering) == 1
                assert served.ask("GET", "/v2/health/live").status == 200
            served.until(lambda: not connections)
            assert not lingering
