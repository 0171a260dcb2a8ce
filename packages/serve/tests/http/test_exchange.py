# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Sizes of bodies and of their documents."""

import contextlib
import gzip
import http.client

import pytest

from dovetail_serve.http import exchange
from dovetail_serve.serving.bodies import LARGEST_BODIES

INFER = "/v2/models/mlp/infer"
# A chunk of 201 bytes, and no end.
CHUNKED = (
    f"POST {INFER} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nc9\r\n{'x' * 201}\r\n"
).encode()


def answer_on(client):
    """Reads a response from a socket: status, headers, body."""
    response = http.client.HTTPResponse(client)
    response.begin()
    return response.status, response.headers, response.read()


def test_bodies_above_the_limit_are_413_and_not_read(exported, serving, bodies):
    with serving(exported[0], http={"max_body": 200}) as served:
        for ask in (served.ask, served.ask_asgi):
            response = ask("POST", INFER, b"x" * 201)
            assert response.status == 413
            assert response.headers["connection"] == "close"
            for part in ("at most 200 bytes", "got Content-Length: 201", "raise max_body"):
                assert part in response.error
            assert ask("POST", INFER, b"x" * 200).status == 400
        with served.connect() as client:
            client.sendall(CHUNKED)  # the rest never comes, and the answer does
            status, _, body = answer_on(client)
        assert status == 413
        assert b"got 201 bytes and more" in body


@pytest.mark.thorough
@pytest.mark.parametrize("chunked", [False, True])
def test_a_client_that_sends_its_whole_body_first_reads_the_refusal(exported, serving, chunked):
    """More than the buffers of the kernel hold, so a connection closed early is a reset."""
    body = b"x" * (32 << 20)
    with serving(exported[0], http={"max_body": 200}) as served:
        response = served.ask("POST", INFER, iter([body]) if chunked else body)
        assert response.status == 413
        assert response.headers["connection"] == "close"


LINGER = ["_LINGER_S", "_LINGER_IDLE_S", "_LINGER_BYTES"]


@pytest.mark.parametrize("bound", LINGER)
def test_the_rest_of_a_refused_body_is_read_within_bounds(exported, serving, monkeypatch, bound):
    for name in LINGER:
        monkeypatch.setattr(exchange, name, 0.01 if name == bound else 1e6)
    with serving(exported[0], http={"max_body": 200}) as served, served.connect() as client:
        client.sendall(CHUNKED)
        assert answer_on(client)[0] == 413
        if bound == "_LINGER_BYTES":
            client.sendall(b"1\r\nx\r\n")
        served.until(lambda: not served.web._server.server_state.connections)


@pytest.mark.thorough
def test_a_client_that_waits_for_100_continue_is_refused_at_once(exported, serving, monkeypatch):
    for name in ("_LINGER_S", "_LINGER_IDLE_S"):
        monkeypatch.setattr(exchange, name, 1e6)
    head = f"POST {INFER} HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n".encode()
    with serving(exported[0], http={"max_body": 200}) as served:
        with served.connect() as client:
            client.sendall(head + b"Content-Length: 201\r\n\r\n")
            answer = client.makefile("rb").read()
            assert answer.startswith(b"HTTP/1.1 413 ")
            assert b"connection: close" in answer
        # One that was told to continue sends its body, and reads the answer after it.
        with served.connect() as client, client.makefile("rb") as stream:
            client.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
            assert stream.readline() == b"HTTP/1.1 100 Continue\r\n"
            client.sendall(b"%x\r\n%b\r\n0\r\n\r\n" % (32 << 20, b"x" * (32 << 20)))
            assert stream.read().startswith(b"\r\nHTTP/1.1 413 ")


def test_a_refused_body_is_not_held_while_its_rest_is_read(exported, serving, monkeypatch):
    for name in ("_LINGER_S", "_LINGER_IDLE_S"):
        monkeypatch.setattr(exchange, name, 1e6)
    with serving(exported[0], http={"max_body": 200}) as served:
        with served.connect() as client:
            client.sendall(CHUNKED.replace(b"c9\r\n", b"c8\r\n").replace(b"x\r\n", b"\r\n1\r\n"))
            served.until(lambda: served.application._bodies.held == 200)
            client.sendall(b"x\r\n")
            assert answer_on(client)[0] == 413
            assert served.application._bodies.held == 0
        # The client is gone, and nothing is read any more.
        served.until(lambda: not served.web._server.server_state.tasks)


@pytest.mark.parametrize("value", ["-1", "+5", "0x5", "5.0", "", "9" * 19, "five"])
def test_the_length_of_the_document_must_be_a_number(ask, bodies, value):
    body, _ = bodies.binary(bodies.rows(1))
    response = ask("POST", INFER, body, {"Inference-Header-Content-Length": value})
    assert response.status == 400
    assert "must be a decimal number, got" in response.error


@pytest.mark.parametrize("value", ["0", "100000"])
def test_the_length_of_the_document_must_lie_in_the_body(ask, bodies, value):
    body, _ = bodies.binary(bodies.rows(1))
    response = ask("POST", INFER, body, {"Inference-Header-Content-Length": value})
    assert response.status == 400
    assert f"must be from 1 to the body's {len(body)} bytes, got {value}; send" in response.error


def fill(served, stack, count):
    """Opens `count` requests with 199 of their 200 bytes. Returns once the server holds these."""
    for _ in range(count):
        client = stack.enter_context(served.connect())
        client.sendall(
            f"POST {INFER} HTTP/1.1\r\nHost: a\r\nContent-Length: 200\r\n\r\n{'x' * 199}".encode()
        )
    served.until(lambda: served.application._bodies.held == 199 * count)


@pytest.mark.thorough
def test_bodies_above_the_bound_of_all_are_429_and_not_read(exported, serving):
    with serving(exported[0], http={"max_body": 200}) as served:
        with contextlib.ExitStack() as stack:
            fill(served, stack, LARGEST_BODIES)
            with served.connect() as client:  # none of its bytes come
                client.sendall(
                    f"POST {INFER} HTTP/1.1\r\nHost: a\r\nContent-Length: 17\r\n\r\n".encode()
                )
                declared = answer_on(client)
            with served.connect() as client:
                client.sendall(
                    f"POST {INFER} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
                    f"11\r\n{'x' * 17}\r\n".encode()
                )
                chunked = answer_on(client)
            for status, headers, body in (declared, chunked):
                assert status == 429
                # The end of a body without a length may never come.
                assert headers["connection"] == (None if body is declared[2] else "close")
                assert headers["retry-after"] == "1"
                for part in (b"at most 3200 bytes", b"got 3184 and 17 more", b"try again later"):
                    assert part in body
            assert served.ask("POST", INFER, b"x" * 16).status == 400
        # The clients are gone, and with them their bytes.
        served.until(lambda: served.application._bodies.held == 0)
        assert served.ask("POST", INFER, b"x" * 200).status == 400


def test_decompressed_bytes_count(exported, serving):
    body = gzip.compress(b"x" * 200)
    with serving(exported[0], http={"max_body": 200}) as served, contextlib.ExitStack() as stack:
        headers = {"Content-Encoding": "gzip"}
        fill(served, stack, LARGEST_BODIES - 1)
        response = served.ask("POST", INFER, body, headers)
        assert response.status == 429
        # It was read, so the connection is still of use.
        assert "connection" not in response.headers
        assert f"got {199 * 15 + len(body)} and 200 more" in response.error
        assert served.ask("POST", INFER, gzip.compress(b"x" * 100), headers).status == 400
        # The client has its answer before the server has done with the request.
        served.until(lambda: served.application._bodies.held == 199 * 15)
