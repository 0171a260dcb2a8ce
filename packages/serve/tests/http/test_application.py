# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Tokens, request ids, sizes, internal errors, lifespan; and the application inside of another."""

INFER = "/v2/models/mlp/infer"


def test_requests_need_the_token(exported, serving, bodies):
    body = bodies.json(bodies.rows(1))
    with serving(exported[0], http={"token": "right-token"}) as served:
        for ask in (served.ask, served.ask_asgi):
            for path in ("/", "/v2/health/live", "/v2/health/ready"):
                assert ask("GET", path).status == 200
            for value in (None, "Bearer wrong", "Basic right-token", "right-token", "Bearer "):
                headers = {"Authorization": value} if value else {}
                for method, path in (("POST", INFER), ("GET", "/metrics"), ("GET", "/status")):
                    response = ask(method, path, body, headers)
                    assert response.status == 401
                    assert response.headers["www-authenticate"] == "Bearer"
                    for part in ("must have the server's token", "got none", "Authorization: B"):
                        assert part in response.error
            for scheme in ("Bearer", "bearer"):
                headers = {"Authorization": f"{scheme} right-token"}
                assert ask("POST", INFER, body, headers).status == 200


def test_errors_of_ours_show_a_request_id_and_no_internals(mlp, bodies, monkeypatch, caplog):
    async def broken(*args, **options):
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(mlp.server, "infer", broken)
    body = bodies.json(bodies.rows(1))
    for ask in (mlp.ask, mlp.ask_asgi):
        caplog.clear()
        response = ask("POST", INFER, body, {"X-Request-Id": "the-id"})
        assert response.status == 500
        assert "the-id" in response.error
        assert "secret" not in response.error
        assert "request_id=the-id" in caplog.text
        assert "ZeroDivisionError: a secret" in caplog.text

    def broken_index():
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(mlp.server, "index", broken_index)
    for ask in (mlp.ask, mlp.ask_asgi):
        response = ask("POST", "/v2/repository/index")
        assert response.status == 500
        assert "secret" not in response.error


def test_websockets_are_refused(mlp):
    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "websocket.connect"}

    mlp.run(mlp.application({"type": "websocket"}, receive, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]


def test_connections_are_closed_by_their_answers_while_the_server_drains(exported, serving, bodies):
    body = bodies.json(bodies.rows(1))
    with serving(exported[0]) as served:
        for ask in (served.ask, served.ask_asgi):
            assert "connection" not in ask("POST", INFER, body).headers
        served.loop.call_soon_threadsafe(served.web.drain)
        served.until(lambda: served.application.draining)
        for ask in (served.ask, served.ask_asgi):
            for path, status in ((INFER, 200), ("/v2/health/ready", 503)):
                response = ask("POST" if path == INFER else "GET", path, body)
                assert response.status == status
                assert response.headers["connection"] == "close"
        with served.connect() as client:
            client.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n")
            assert client.makefile("rb").read().endswith(b'{"live":true}')  # up to its end
