# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""More clients than connections: idle ones give way, and probes of health are answered."""

import contextlib
import http.client

import pytest

from dovetail_serve.command.serve import raise_descriptor_limit
from dovetail_serve.http.limits import Limits
from dovetail_serve.http.places import is_probe

POST = b"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: a\r\n"
LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n"
METADATA = b"GET /v2 HTTP/1.1\r\nHost: a\r\n\r\n"
HALF = b"GET /v2 HTTP/1.1\r\nHo"


def status_on(client, request):
    """Sends a request and returns the status; None if the connection is closed."""
    with contextlib.suppress(ConnectionError), client.makefile("rb") as stream:
        client.sendall(request)
        if line := stream.readline():
            stream.read(int(http.client.parse_headers(stream)["content-length"]))
            return int(line[9:12])
    return None


def connect(served, stack, count, *, sends=b""):
    """Opens connections one after another. Each is known to the server, and what it sends too."""
    state = served.web._server.server_state
    clients = []
    for _ in range(count):
        before = set(state.connections)
        clients.append(stack.enter_context(served.connect()))
        served.until(lambda before=before: state.connections - before)
        clients[-1].sendall(sends)
    if sends:
        served.until(lambda: not any(c._is_new for c in state.connections))
    return clients


def test_the_connection_that_is_idle_for_longest_gives_way(exported, serving):
    with (
        serving(exported[0], http={"limits": Limits(connections=3)}) as served,
        contextlib.ExitStack() as stack,
    ):
        busy, first, second = connect(served, stack, 3)
        busy.sendall(POST + b"Content-Length: 2\r\n\r\n{")
        served.until(lambda: served.web._server.server_state.tasks)
        # An answer makes it the one that is idle for the shortest time.
        assert status_on(first, METADATA) == 200
        (third,) = connect(served, stack, 1)
        assert status_on(third, METADATA) == 200
        assert status_on(second, METADATA) is None
        assert status_on(first, METADATA) == 200
        assert status_on(busy, b"}") == 400


def test_an_incomplete_head_gives_way_if_none_is_idle(exported, serving):
    with (
        serving(exported[0], http={"limits": Limits(connections=2)}) as served,
        contextlib.ExitStack() as stack,
    ):
        slow, slower = connect(served, stack, 2, sends=HALF)
        (new,) = connect(served, stack, 1)
        assert status_on(new, METADATA) == 200
        assert slow.recv(12) == b"HTTP/1.1 503"
        assert status_on(slower, b"st: a\r\n\r\n") == 200


def test_health_is_answered_where_all_connections_have_requests(exported, serving):
    with (
        serving(exported[0], http={"limits": Limits(connections=2)}) as served,
        contextlib.ExitStack() as stack,
    ):
        busy = connect(served, stack, 2, sends=POST + b"Content-Length: 2\r\n\r\n{")
        for path, status in [
            ("/v2/health/live", 200),
            ("/v2/health/ready", 200),
            ("/v2/models/mlp/ready", 200),
            ("/v2/models/mlp/versions/2/ready?a=b", 200),
            ("/v2", 503),
            ("/v2/models/mlp", 503),
        ]:
            response = served.ask("GET", path)
            assert response.status == status, path
            assert response.headers["connection"] == "close"
        assert "at most 2 connections" in response.error
        assert [status_on(client, b"}") for client in busy] == [400, 400]
        # The probe's connection does not stay, and the two are idle now.
        assert served.ask("GET", "/v2").status == 200


def test_a_probe_is_one_of_the_routes_of_health():
    assert is_probe(b"/v2/health/live?x")
    for target in (b"/v2/health/live/x", b"/v2/models/mlp/infer", b"/v2/models/a/b/ready", b"*"):
        assert not is_probe(target)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("count", "sends"), [(1024, METADATA), (1024, HALF), (2000, b""), (2000, HALF)]
)
def test_a_thousand_idle_connections_keep_nobody_out(mlp, bodies, count, sends):
    raise_descriptor_limit()
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(mlp.connect()).sendall(sends)
        for _ in range(3):
            assert mlp.ask("GET", "/v2/health/live").status == 200
            body = bodies.json(bodies.rows(1))
            assert mlp.ask("POST", "/v2/models/mlp/infer", body).status == 200
