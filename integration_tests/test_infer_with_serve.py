# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The server of dovetail-infer behind the connections of dovetail-serve, over raw sockets."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvicorn
from flax import nnx

from dovetail_infer import Engine
from dovetail_infer.server import app
from dovetail_infer.testing import ByteTokenizer, TinyDecoder
from dovetail_serve.http import Limits
from dovetail_stack.recipes.serving import connections

SIZES: dict[str, Any] = {
    "page_size": 4,
    "step_tokens": 32,
    "max_rows": 4,
    "max_length": 64,
    "kv_bytes": 2**20,
}
POST = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\n"
GET = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
BODY = {"model": "tiny", "prompt": "Hello", "max_tokens": 8, "ignore_eos": True}
LIMIT_S = 60  # only a hang takes so long


class Served:
    """A server on a thread of its own, with the entries of its access log."""

    def __init__(self, engine: Engine, limits: Limits) -> None:
        self.entries: list[dict[str, Any]] = []
        self._clients = contextlib.ExitStack()
        log = self.entries.append
        application = app(engine, name="tiny", tokenizer=ByteTokenizer(), access_log=log)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        self.port = self._socket.getsockname()[1]
        protocol = connections(application, limits)
        options = {"lifespan": "off", "log_config": None, "timeout_graceful_shutdown": 2}
        self._server = uvicorn.Server(uvicorn.Config(application, http=protocol, **options))
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],))
        self._thread.start()

    def close(self) -> None:
        self._clients.close()
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=LIMIT_S)

    def exchange(self, sent: bytes) -> bytes:
        """What the server sends until it closes the connection."""
        with self.connect() as client:
            client.sendall(sent)
            return client.makefile("rb").read()

    def ask(self, body: dict[str, Any]) -> http.client.HTTPResponse:
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        self._clients.callback(client.close)
        client.request("POST", "/v1/completions", json.dumps(body))
        return client.getresponse()


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    model = TinyDecoder(rngs=nnx.Rngs(3))
    with Engine(model, tokenizer=ByteTokenizer(), **SIZES) as engine:
        yield engine


@pytest.fixture
def serve(engine: Engine) -> Iterator[Callable[..., Served]]:
    with contextlib.ExitStack() as stack:

        def start(**limits: Any) -> Served:
            served = Served(engine, Limits(**limits))
            stack.callback(served.close)
            return served

        yield start


def statuses(answer: bytes) -> list[int]:
    return [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]


REFUSED = {
    "two lengths": (POST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400),
    "length and chunked": (
        POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    "negative length": (POST + b"Content-Length: -3\r\n\r\nabc", 400),
    "signed length": (POST + b"Content-Length: +5\r\n\r\nabcde", 400),
    "no chunk": (POST + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\nabc\r\n0\r\n\r\n", 400),
    "another coding": (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 501),
    "large head": (POST + b"X: " + b"y" * 17_000 + b"\r\n\r\n", 431),
    "two hosts": (POST + b"Host: b\r\n\r\n", 400),
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
}


@pytest.mark.capability("ambiguous requests are refused")
def test_ambiguous_requests_have_the_form_of_the_api_and_their_entry(serve):
    served = serve()
    for name, (sent, status) in REFUSED.items():
        answer = served.exchange(sent + GET)  # what follows must not be read as a request
        assert statuses(answer) == [status], name
        error = json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert "must" in error["message"]
        # The route has an entry too, if the request has come to it.
        assert (status, "malformed") in {(e["status"], e["reason"]) for e in served.entries}
        served.entries.clear()


def test_slow_heads_and_bodies_are_408(serve):
    served = serve(head_s=0.2, body_s=0.4)
    with served.connect() as slow, served.connect() as body:
        slow.sendall(POST)
        body.sendall(POST + b"Content-Length: 100\r\n\r\n{")
        began = time.monotonic()
        assert statuses(slow.makefile("rb").read()) == [408]
        assert statuses(body.makefile("rb").read()) == [408]
        assert 0.2 < time.monotonic() - began < 20
    assert json.loads(served.ask(BODY).read())["choices"][0]["finish_reason"] == "length"


def test_more_connections_than_there_are_places(serve, engine):
    served = serve(connections=2)
    with served.connect() as idle:
        idle.sendall(GET)
        assert idle.recv(12) == b"HTTP/1.1 200"
        engine.pause()
        try:
            streams = [served.ask({**BODY, "stream": True}) for _ in range(2)]
            # The idle connection has ended for the second of them.
            assert idle.makefile("rb").read().endswith(b'{"status":"alive"}')
            refused = served.exchange(POST + b"Content-Length: 2\r\n\r\n{}")
            assert statuses(refused) == [503]
            assert b"retry-after: 1" in refused
            with served.connect() as probe:  # answered without a place
                probe.sendall(GET)
                assert probe.recv(12) == b"HTTP/1.1 200"
        finally:
            engine.resume()
        for stream in streams:
            assert stream.read().endswith(b"data: [DONE]\n\n")


@pytest.mark.thorough("its steps return the likeliest tokens, by programs of their own")
def test_a_client_that_reads_nothing_ends_and_holds_up_nobody(serve):
    served = serve(send_s=0.5)
    body = {**BODY, "max_tokens": 58, "n": 16, "logprobs": 20, "stream": True}
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", served.port))
        text = json.dumps(body).encode()
        slow.sendall(POST + b"Content-Length: %d\r\n\r\n" % len(text) + text)
        assert slow.recv(12) == b"HTTP/1.1 200"
        whole = served.ask(body).read()
        assert whole.endswith(b"data: [DONE]\n\n")
        end = time.monotonic() + LIMIT_S
        while len(served.entries) < 2:
            assert time.monotonic() < end
            time.sleep(0.01)
    assert len(whole) > 200_000  # more than the buffers of a connection hold
    cut, answered = sorted(entry["reason"] for entry in served.entries)
    assert answered == "length"
    assert cut.startswith("disconnect")
