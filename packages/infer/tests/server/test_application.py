# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Refusals before a body is read, and health under load, over raw sockets."""

import contextlib
import http.client
import json
import socket
import time

import pytest
from clients import KEY, Running

from dovetail_infer import QueueFull

HEAD = "POST /v1/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {key}\r\n{more}\r\n"
STREAM = b'{"model":"tiny","prompt":"Hello","max_tokens":50,"ignore_eos":true,"stream":true}'
LIMIT_S = 60  # only a hang takes so long


def connect(server: Running) -> socket.socket:
    port = int(server.url.rpartition(":")[2])
    return socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S)


def head(key: str = KEY, more: str = "Content-Length: 100000\r\n") -> bytes:
    return HEAD.format(key=key, more=more).encode()


def answer_to(server: Running, sent: bytes) -> tuple[int, str | None, str | None]:
    """Status, code and Retry-After of the answer to a head whose body never comes."""
    with connect(server) as client:
        client.sendall(sent)
        response = http.client.HTTPResponse(client)
        response.begin()
        code = json.loads(response.read())["error"]["code"]
        return response.status, code, response.getheader("retry-after")


@contextlib.contextmanager
def paused(server: Running):
    server.engine.pause()
    try:
        yield
    finally:
        server.engine.resume()


@pytest.mark.capability("refusals before the body is read")
def test_nothing_is_read_of_a_request_that_is_refused_anyway(narrow):
    assert answer_to(narrow, head("sk-wrong")) == (401, "invalid_api_key", None)
    with paused(narrow), connect(narrow) as client:
        client.sendall(head(more=f"Content-Length: {len(STREAM)}\r\n") + STREAM)
        assert client.recv(12) == b"HTTP/1.1 200"
        status, code, seconds = answer_to(narrow, head())
        assert (status, code, int(seconds) >= 1) == (429, "rate_limit_exceeded", True)
        # The other key has a place, but the queue has none.
        with narrow.engine.stream("a"):
            with pytest.raises(QueueFull) as caught:
                narrow.engine.admit()
            status, code, seconds = answer_to(narrow, head("sk-another"))
            assert (status, code) == (429, "rate_limit_exceeded")
            assert int(seconds) >= 1
            assert caught.value.retry_after_s > 0
    narrow.application.draining = True
    try:
        assert answer_to(narrow, head()) == (503, "unavailable", "1")
    finally:
        narrow.application.draining = False


def test_a_client_that_waits_for_100_continue_is_refused_and_let_go(narrow):
    expecting = "Expect: 100-continue\r\nContent-Length: 100000\r\n"
    with connect(narrow) as client:
        client.sendall(head("sk-wrong", expecting))
        answer = client.makefile("rb").read()  # the connection ends
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"100 Continue" not in answer


def test_a_connection_serves_on_after_a_refusal_before_its_body(narrow):
    with connect(narrow) as client:
        client.sendall(head("sk-wrong", "Content-Length: 5\r\n"))
        for sent in (b"abcde" + head("sk-wrong", "Content-Length: 0\r\n"), b""):
            response = http.client.HTTPResponse(client)
            response.begin()
            assert response.status == 401
            response.read()
            client.sendall(sent)


@pytest.mark.thorough("64 streams")
def test_health_is_answered_at_any_load(start):
    server = start(max_queue=60)
    body = head(more=f"Content-Length: {len(STREAM)}\r\n") + STREAM
    with contextlib.ExitStack() as stack:
        with paused(server):
            streams = [stack.enter_context(connect(server)) for _ in range(60)]
            for client in streams:
                client.sendall(body)
                assert client.recv(12) == b"HTTP/1.1 200"
            assert answer_to(server, head())[0] == 429  # the queue is full
            waits = [_health_s(server)]
        while server.engine.stats().running and len(waits) < 500:
            waits.append(_health_s(server))
            answer_to(server, head("sk-wrong"))
    assert len(waits) > 3
    assert sorted(waits)[len(waits) // 2] < 1  # the machine may be busy otherwise


def _health_s(server: Running) -> float:
    began = time.monotonic()
    with connect(server) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.1 200"
    return time.monotonic() - began
