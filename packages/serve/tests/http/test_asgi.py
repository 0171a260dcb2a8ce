# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The application alone, with its lifespan, and inside of another one."""

import asyncio

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from dovetail_serve import Server
from dovetail_serve.http.asgi import app

INFER = "/v2/models/mlp/infer"


def test_it_runs_inside_of_another_application(mlp, bodies):
    outer = Starlette(routes=[Mount("/models", app=mlp.application)])
    x = bodies.rows(2)
    scope = {
        "type": "http",
        "method": "POST",
        "path": f"/models{INFER}",
        "root_path": "",
        "query_string": b"",
        "headers": [],
    }
    response = mlp.run(bodies.call(outer, scope, bodies.json(x)))
    assert response.status == 200
    assert response.document["outputs"][0]["shape"] == [2, 3]
    # The outer application writes into the first one.
    scope |= {"method": "GET", "path": "/models/v2/models/mlp", "headers": [], "root_path": ""}
    assert mlp.run(bodies.call(outer, scope, b"")).document["name"] == "mlp"


async def lifespan(application):
    """Returns the messages that the application sends in its life."""
    messages = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    sent = []

    async def receive():
        return messages.pop(0)

    async def send(message):
        sent.append(message)

    await application({"type": "lifespan"}, receive, send)
    return sent


def test_its_lifespan_starts_and_stops_the_server(exported):
    async def main():
        server = Server(exported[0])
        sent = await lifespan(app(server))
        return [message["type"] for message in sent], server.live

    assert asyncio.run(main()) == (
        ["lifespan.startup.complete", "lifespan.shutdown.complete"],
        False,
    )


def test_a_server_that_cannot_start_fails_the_lifespan(tmp_path, caplog):
    async def main():
        return await lifespan(app(Server(tmp_path / "absent")))

    (message,) = asyncio.run(main())
    assert message["type"] == "lifespan.startup.failed"
    assert "absent" in message["message"]
    assert "could not start" in caplog.text


def test_options_are_checked(tmp_path):
    server = Server(tmp_path)
    with pytest.raises(ValueError, match="bytes from 1, got max_body=0; write max_body=67108864"):
        app(server, max_body=0)
    for token in ("", "two words", "schlüssel"):
        with pytest.raises(ValueError, match=r"token must .*, got .*; write one from secrets"):
            app(server, token=token)
