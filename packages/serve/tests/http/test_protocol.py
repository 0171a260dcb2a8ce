# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Malformed and excessive requests over raw sockets: one refusal, and the connection is closed."""

import json
import random

import pytest

from dovetail_serve import Batching
from dovetail_serve.http.limits import Limits

POST = b"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: a\r\n"
GET = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n"


def exchange(served, *parts):
    """Returns what a server sends until it closes the connection."""
    with served.connect() as client:
        for part in parts:
            client.sendall(part)
        return client.makefile("rb").read()


def statuses(answer):
    return [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]


MALFORMED = {
    "length and chunked": POST
    + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked and length": POST
    + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
    "different lengths": POST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "equal lengths": POST + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "list of lengths": POST + b"Content-Length: 3, 3\r\n\r\nabc",
    "signed length": POST + b"Content-Length: +3\r\n\r\nabc",
    "two codings": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
    "chunked is not last": POST + b"Transfer-Encoding: chunked, gzip\r\n\r\n",
    "bare LF": b"POST / HTTP/1.1\nHost: a\nContent-Length: 3\n\nabc",
    "bare LF in a header": POST + b"X: y\nContent-Length: 3\r\n\r\nabc",
    "bare CR": POST + b"X: y\rZ: a\r\n\r\n",
    "folded header": POST + b"X: y\r\n z\r\n\r\n",
    "NUL in a value": POST + b"X: y\0z\r\n\r\n",
    "NUL in a name": POST + b"X\0: y\r\n\r\n",
    "NUL in the target": b"GET /a\0b HTTP/1.1\r\nHost: a\r\n\r\n",
    "space before a colon": POST + b"Content-Length : 3\r\n\r\nabc",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "unknown method": b"FOO / HTTP/1.1\r\nHost: a\r\n\r\n",
    "negative chunk": POST + b"Transfer-Encoding: chunked\r\n\r\n-3\r\nabc\r\n0\r\n\r\n",
    "huge chunk": POST + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nabc",
    "long chunk": POST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcdef\r\n0\r\n\r\n",
    "trailers": POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\nAuthorization: Bearer t\r\n\r\n",
    "no target": b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n",
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_requests_are_400_and_end_the_connection(mlp, case):
    # A second request behind the first must not be read as one.
    answer = exchange(mlp, MALFORMED[case] + GET)
    assert statuses(answer) == [400]
    head, body = answer.split(b"\r\n\r\n")
    assert b"connection: close" in head.lower()
    assert "must" in json.loads(body)["error"]


@pytest.mark.parametrize(
    ("request_", "status", "message"),
    [
        (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505, "must be HTTP/1.1, got HTTP/2.0; send"),
        (b"GET /\r\n\r\n", 505, "got HTTP/0.9; send"),
        (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 501, "must be chunked"),
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 501, "and HTTP 1.0; send"),
        (POST + b"X: y\r\n" * 100 + b"\r\n", 431, "at most 100 headers, got 101; send fewer"),
        (POST + b"X: " + b"y" * 17_000 + b"\r\n\r\n", 431, "at most 16384 bytes, got 17"),
        (b"GET /" + b"y" * 17_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 431, "at most 16384 bytes"),
    ],
)
def test_excessive_requests_are_refused(mlp, request_, status, message):
    answer = exchange(mlp, request_)
    assert statuses(answer) == [status]
    assert message in json.loads(answer.split(b"\r\n\r\n")[1])["error"]


def test_a_head_without_an_end_is_refused_before_it_ends(mlp):
    with mlp.connect() as client:
        client.sendall(POST)
        client.sendall(b"X: " + b"y" * 20_000)
        answer = client.makefile("rb").read()
    assert statuses(answer) == [431]


def test_a_large_body_is_no_large_head(mlp, bodies):
    body = bodies.json(bodies.rows(400))
    assert len(body) > 40_000
    head = POST + b"Content-Length: %d\r\n\r\n" % len(body)
    with mlp.connect() as client:
        stream = client.makefile("rb")
        for _ in range(2):
            for start in range(0, len(head + body), 10_000):
                client.sendall((head + body)[start : start + 10_000])
            assert stream.readline().startswith(b"HTTP/1.1 200 ")
            read_response(stream)


def read_response(stream):
    """Reads the rest of a response of known length."""
    length = 0
    while line := stream.readline().strip():
        name, _, value = line.partition(b":")
        length = int(value) if name.lower() == b"content-length" else length
    return stream.read(length)


def test_pipelined_requests_are_answered_in_order(mlp):
    metadata = b"GET /v2 HTTP/1.1\r\nHost: a\r\n\r\n"
    last = GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    answer = exchange(mlp, metadata + GET + metadata + last)
    assert statuses(answer) == [200] * 4
    parts = answer.split(b"HTTP/1.1 ")[1:]
    assert [b"extensions" in part for part in parts] == [True, False, True, False]


def test_a_refusal_does_not_overtake_an_answer(exported, serving, bodies):
    """A malformed request behind one that waits: the first gets its answer, and nothing follows."""
    body = bodies.json(bodies.rows(1), parameters={"timeout": 200_000})
    waiting = POST + b"Content-Length: %d\r\n\r\n" % len(body) + body
    with serving(exported[0], batching=Batching(max_delay_ms=60_000.0)) as served:
        assert statuses(exchange(served, waiting + b"\0\0\0\0")) == [504]


def test_expect_continue(mlp, bodies):
    body = bodies.json(bodies.rows(1))
    with mlp.connect() as client:
        client.sendall(POST + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body))
        stream = client.makefile("rb")
        assert stream.readline() == b"HTTP/1.1 100 Continue\r\n"
        assert stream.readline() == b"\r\n"
        client.sendall(body)
        assert stream.readline().startswith(b"HTTP/1.1 200 ")


def test_an_offer_of_http2_is_declined(mlp):
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n"
    answer = exchange(mlp, GET[:-2] + offer + b"\r\n")
    assert statuses(answer) == [200]
    # The parser takes what follows for the other protocol, and so it takes a body.
    assert b"connection: close" in answer
    for body in (b"Content-Length: 3\r\n\r\nabc", b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"):
        answer = exchange(mlp, POST + offer + body)
        assert statuses(answer) == [400]
        assert b"must not offer another protocol, got Upgrade; send it without" in answer


@pytest.mark.parametrize(
    ("sent", "part"),
    [
        (b"GET /v2 HT", "head"),
        (b"\r\n\r\n", "head"),
        (POST + b"Content-Length: 9\r\n\r\nx", "body"),
    ],
)
def test_slow_requests_are_408(exported, serving, sent, part):
    # From the connection on, so long enough for this thread to send on a busy machine.
    limits = Limits(**{"head_s": 1e6, "body_s": 1e6, f"{part}_s": 0.5})
    with serving(exported[0], http={"limits": limits}) as served:
        answer = exchange(served, sent)
        assert statuses(answer) == [408]
        message = f"the {part} of a request must arrive within 0.5 seconds, got a part"
        assert message in json.loads(answer.split(b"\r\n\r\n")[1])["error"]
        served.until(lambda: not served.web._server.server_state.tasks)
        # A connection that has sent a request in time is not timed any more.
        with served.connect() as client:
            stream = client.makefile("rb")
            client.sendall(GET)
            assert stream.readline().startswith(b"HTTP/1.1 200 ")


def test_idle_connections_are_closed(exported, serving):
    limits = Limits(keep_alive_s=0.05)
    with serving(exported[0], http={"limits": limits}) as served:
        assert statuses(exchange(served, GET)) == [200]


@pytest.mark.thorough
def test_a_client_that_goes_away_ends_the_first_of_its_pipelined_requests(
    exported, serving, bodies, caplog
):
    body = bodies.json(bodies.rows(1))
    request_ = POST + b"Content-Length: %d\r\n\r\n" % len(body) + body
    with serving(exported[0], batching=Batching(max_delay_ms=60_000.0)) as served:
        with served.connect() as client:
            client.sendall(GET + request_ * 2)
            served.until_queued(1)
        served.until(lambda: served.server.statistics("mlp").failures == {"cancelled": 1})
        served.until(lambda: not served.web._server.server_state.tasks)
        assert served.application._stages.responses == {200: 1, 499: 1}
    assert "failed" not in caplog.text


def test_limits_are_checked():
    with pytest.raises(ValueError, match="above 0, got headers=0; leave it out for 100"):
        Limits(headers=0)


@pytest.mark.thorough
def test_mutated_requests_do_no_harm(mlp, bodies):
    """A sample of benchmarks/fuzz_http.py; valid requests in between are answered."""
    generator = random.Random(7)
    body = bodies.json(bodies.rows(2))
    valid = POST + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body
    pieces = [b"\r\n", b"\0", b"Transfer-Encoding: chunked\r\n", b"\xff\xfe", b" ", b"9" * 30, b":"]
    state = mlp.web._server.server_state
    for i in range(500):
        data = bytearray(valid)
        for _ in range(generator.randint(1, 4)):
            at = generator.randrange(len(data))
            if generator.random() < 0.5:
                data[at] ^= 1 << generator.randrange(8)
            else:
                data[at : at + generator.randrange(20)] = generator.choice(pieces)
        with mlp.connect() as client:
            client.sendall(data)
            client.shutdown(1)  # nothing follows
            client.recv(1 << 16)
        if i % 50 == 0:
            assert statuses(exchange(mlp, valid)) == [200]
    mlp.until(lambda: not state.connections and not state.tasks)
