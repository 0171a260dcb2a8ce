# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Requests that are refused before their bodies are read, and the connections that they leave."""

import contextlib
import http.client
import json

import pytest

from dovetail_serve import Batching
from dovetail_serve.http import infer
from dovetail_serve.http.exchange import GONE
from dovetail_serve.http.limits import Limits

INFER = "/v2/models/mlp/infer"
HEAD = f"POST {INFER} HTTP/1.1\r\nHost: a\r\n".encode()
WAITS = Batching(max_delay_ms=60_000.0, queue=1, priorities=2)
# More than the buffers of the kernel hold, so that a client cannot have sent it before the answer.
LARGE = b"[" * (32 << 20)


@pytest.fixture
def parsed(monkeypatch):
    """Sizes of the bodies that were decoded."""
    sizes, parse = [], infer.parse

    def note(body, *arguments, **names):
        sizes.append(len(body))
        return parse(body, *arguments, **names)

    monkeypatch.setattr(infer, "parse", note)
    return sizes


@contextlib.contextmanager
def full(exported, serving, bodies, parsed, **http):
    """A server whose queue is full. What it has decoded so far is forgotten."""
    body = bodies.json(bodies.rows(1))
    with serving(exported[0], batching=WAITS, http=http) as served, served.connect() as waiting:
        waiting.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        served.until_queued(1)
        parsed.clear()
        yield served


def read(stream):
    """Returns the next answer of a stream: its status, its headers and its body."""
    status = int(stream.readline()[9:12])
    headers = http.client.parse_headers(stream)
    return status, headers, stream.read(int(headers["content-length"]))


def test_a_full_queue_refuses_bodies_unread_and_keeps_the_connection(
    exported, serving, bodies, parsed
):
    with full(exported, serving, bodies, parsed) as served:
        client = http.client.HTTPConnection("127.0.0.1", served.port, timeout=120)
        with contextlib.closing(client):
            for _ in range(3):
                client.request("POST", INFER, LARGE)
                response = client.getresponse()
                assert response.status == 429
                assert int(response.headers["retry-after"]) >= 1
                assert "connection" not in response.headers
                assert b"at most 1 requests may wait, got queued=1" in response.read()
            client.request("GET", "/v2")
            assert client.getresponse().status == 200
        assert served.server.statistics("mlp").failures == {"QueueFull": 3}
    assert not parsed


@pytest.mark.parametrize("fields", ["Transfer-Encoding: chunked", "Connection: close"])
def test_a_client_that_is_still_sending_reads_the_refusal_before_the_end(
    exported, serving, bodies, parsed, fields
):
    body = LARGE
    if "chunked" in fields:
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(LARGE), LARGE)
    else:
        fields += f"\r\nContent-Length: {len(LARGE)}"
    with full(exported, serving, bodies, parsed) as served, served.connect() as client:
        client.sendall(HEAD + f"{fields}\r\n\r\n".encode() + body)
        with client.makefile("rb") as stream:
            status, headers, _ = read(stream)
            assert (status, headers["connection"]) == (429, "close")
            assert not stream.read()
    assert not parsed


def test_a_client_that_waits_for_100_continue_is_refused_instead(exported, serving, bodies, parsed):
    with full(exported, serving, bodies, parsed) as served, served.connect() as client:
        client.sendall(HEAD + b"Expect: 100-continue\r\nContent-Length: 10\r\n\r\n")
        with client.makefile("rb") as stream:
            status, headers, _ = read(stream)
            assert (status, headers["connection"]) == (429, "close")
            assert not stream.read()


def test_a_body_that_comes_after_its_refusal_is_no_request(exported, serving, bodies, parsed):
    """Neither is the time of a slow one answered: that would be taken for the next answer."""
    limits = {"limits": Limits(body_s=0.2)}
    get = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n"
    with full(exported, serving, bodies, parsed, **limits) as served:
        with served.connect() as client, client.makefile("rb") as stream:
            client.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(get))
            assert read(stream)[0] == 429
            client.sendall(get)
            client.sendall(get)
            assert read(stream)[0] == 200
            client.sendall(HEAD + b"Content-Length: 9\r\n\r\n")
            assert read(stream)[0] == 429
            assert not stream.read()  # closed after `body_s`, without a word
        served.until(lambda: len(served.web._server.server_state.connections) == 1)


@pytest.mark.parametrize(
    ("headers", "status", "message"),
    [
        ({"Inference-Timeout-Us": "1"}, 504, "before the deadline"),
        ({"Inference-Priority": "2"}, 400, "from 0 to 1, got priority=2"),
        ({"Inference-Timeout-Us": "soon"}, 400, "must be a decimal number, got 'soon'; send"),
        ({"Inference-Priority": "-1"}, 400, "must be a decimal number, got '-1'; send"),
    ],
)
def test_headers_are_checked_before_the_body(
    exported, serving, bodies, parsed, headers, status, message
):
    with serving(exported[0], batching=WAITS) as served:
        response = served.ask("POST", INFER, b"no JSON", headers)
        assert response.status == status
        assert message in response.error
    assert not parsed


def test_headers_are_options_and_must_not_contradict_the_body(exported, serving, bodies):
    batching = Batching(max_delay_ms=60_000.0, priorities=2)
    with serving(exported[0], batching=batching) as served:
        headers = {"Inference-Timeout-Us": "200000", "Inference-Priority": "1"}
        equal = {"timeout": 200_000, "priority": 1}
        for parameters in ({}, equal):
            body = bodies.json(bodies.rows(1), parameters=parameters)
            assert served.ask("POST", INFER, body, headers).status == 504
        for name, value in (("timeout", 1), ("priority", 0), ("priority", 2)):
            body = bodies.json(bodies.rows(1), parameters={name: value})
            response = served.ask("POST", INFER, body, headers)
            assert response.status == 400
            assert f"the parameter '{name}' must be equal, got" in response.error


def test_a_stopped_server_and_an_unknown_model_refuse_bodies_unread(
    exported, serving, bodies, parsed
):
    with serving(exported[0]) as served:
        assert served.ask("POST", "/v2/models/mlq/infer", LARGE).status == 404
        served.run(served.server.stop(0.0))
        response = served.ask("POST", INFER, LARGE)
        assert response.status == 503
        assert response.headers["retry-after"] == "1"
    assert not parsed


def test_the_default_deadline_refuses_before_decoding_unless_the_body_may_have_another(
    exported, serving, bodies, parsed
):
    """A full batch waits, for longer than the deadline. A body with its own is decoded."""
    batching = Batching(max_delay_ms=60_000.0, timeout_ms=10_000.0)
    x = bodies.rows(1)
    with serving(exported[0], batching=batching) as served:
        batcher = served.server._repository.find("mlp").route(None).batcher
        waits = bodies.json(bodies.rows(batcher._max_batch), parameters={"timeout": 100_000_000})
        batcher._running = (None,)  # so that the batch waits
        with served.connect() as waiting:
            waiting.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(waits) + waits)
            served.until_queued(1)
            batcher._queue._batch_s = 5.0  # 15 s for three of them
            parsed.clear()
            response = served.ask("POST", INFER, bodies.json(x))
            assert response.status == 429
            assert "about 15000 ms, and a deadline in 10000 ms" in response.error
            assert response.headers["retry-after"] == "5"
            assert not parsed
            for text in ('{"timeout": 20000000}', '{"time\\u006fut": 14000000}'):
                body = bodies.json(x)[:-1] + f', "parameters": {text}}}'.encode()
                with served.connect() as client:
                    client.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
                    served.until(lambda: parsed)
                    assert json.loads(body)["parameters"]
                    parsed.clear()
            batcher._running = ()


@pytest.mark.parametrize("gone", [False, True])
def test_the_body_of_a_client_that_has_gone_is_not_decoded(mlp, bodies, parsed, gone):
    """In a busy loop a client may go between the end of its body and the work on it."""
    sent = []

    async def receive():
        return {"type": "http.request", "body": bodies.json(bodies.rows(1))}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": INFER, "headers": []}
    mlp.run(mlp.application(scope | {GONE: lambda: gone}, receive, send))
    assert bool(parsed) != gone
    assert bool(sent) != gone


def test_the_protocol_tells_when_a_client_has_gone(exported, serving, parsed):
    with serving(exported[0]) as served:
        state = served.web._server.server_state
        with served.connect() as client:
            client.sendall(HEAD + b"Content-Length: 9\r\n\r\n")
            served.until(lambda: state.tasks)
            (protocol,) = state.connections
            tells = protocol.scope[GONE]
            assert not tells()
        served.until(lambda: not state.connections)
        assert tells()
    assert not parsed
