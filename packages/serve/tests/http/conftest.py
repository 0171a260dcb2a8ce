# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A server over HTTP on a thread of its own, asked over a socket or as an ASGI application."""

import asyncio
import contextlib
import http.client
import json
import socket
import threading
from typing import NamedTuple

import numpy as np
import pytest

from dovetail_serve.http.run import start_http
from dovetail_serve.serving.server import Server
from dovetail_serve.testing import save_mlp

TIMEOUT_S = 120.0  # only a hang takes so long


class Response(NamedTuple):
    """A response, with header names in lower case."""

    status: int
    headers: dict
    body: bytes

    @property
    def document(self):
        return json.loads(self.body)

    @property
    def error(self):
        document = self.document
        assert list(document) == ["error"]
        return document["error"]


class Served:
    """A server on the loop of another thread: `ask` over a socket, `ask_asgi` in process."""

    def __init__(self, loop, server, web, expected):
        self.loop, self.server, self.web, self.port = loop, server, web, web.port
        self.application, self.expected = web._application, expected

    def run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(TIMEOUT_S)

    def until(self, condition):
        """Returns once `condition()`, called on the server's loop, holds."""

        async def wait():
            while not condition():
                await asyncio.sleep(0)  # lets the loop take the next event

        self.run(wait())

    def until_queued(self, count):
        self.until(lambda: self.server.statistics("mlp").queued == count)

    def ask(self, method, path, body=b"", headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            fields = {name.lower(): value for name, value in response.getheaders()}
            answer = Response(response.status, fields, response.read())
        # The server counts a request after its answer, in the same step of the loop.
        self.run(asyncio.sleep(0))
        return answer

    def ask_asgi(self, method, path, body=b"", headers=None):
        fields = {"host": "test", "content-length": str(len(body))} | (headers or {})
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(k.lower().encode(), v.encode()) for k, v in fields.items()],
        }
        return self.run(call(self.application, scope, body))

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT_S)


async def call(application, scope, body):
    """Returns the response of an ASGI application."""
    messages, sent = [{"type": "http.request", "body": body, "more_body": False}], []

    async def receive():
        if messages:
            return messages.pop()
        return await asyncio.Event().wait()  # a client that stays

    async def send(message):
        sent.append(message)

    await application(scope, receive, send)
    fields = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Response(sent[0]["status"], fields, b"".join(m.get("body", b"") for m in sent[1:]))


@contextlib.contextmanager
def serving(root, *, expected=None, http=None, start=True, **options):
    """Serves a repository: `http` are options of `start_http`, others those of `Server`."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def begin():
        server = Server(root, **options)
        if start:
            await server.start()
        return Served(loop, server, await start_http(server, port=0, **(http or {})), expected)

    async def end(served):
        await served.server.stop(0.0)
        await served.web.stop(1.0)

    try:
        served = asyncio.run_coroutine_threadsafe(begin(), loop).result(TIMEOUT_S)
        try:
            yield served
        finally:
            served.run(end(served))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def infer_body(x, **members):
    """Returns the JSON body of a request for float32 rows."""
    data = x.ravel().tolist()
    tensor = {"name": "x", "datatype": "FP32", "shape": list(x.shape), "data": data}
    return json.dumps({"inputs": [tensor], **members}).encode()


def binary_body(x, **members):
    """Returns the body and the headers of a request with binary data."""
    parameters = {"binary_data_size": x.nbytes}
    tensor = {"name": "x", "datatype": "FP32", "shape": list(x.shape), "parameters": parameters}
    text = json.dumps({"inputs": [tensor], **members}).encode()
    return text + x.tobytes(), {"Inference-Header-Content-Length": str(len(text))}


def rows(count, seed=0):
    return np.random.default_rng(seed).normal(size=(count, 6)).astype("float32")


@pytest.fixture(scope="session", name="serving")
def _serving():
    return serving


@pytest.fixture(scope="session", name="bodies")
def _bodies():
    class Bodies:
        json, binary, rows, call = map(staticmethod, (infer_body, binary_body, rows, call))

    return Bodies


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    """A repository with two versions of "mlp", f32[batch, 6] to f32[batch, 3]; and in NumPy."""
    root = tmp_path_factory.mktemp("repository")
    expected = {str(v): save_mlp(root / "mlp" / str(v), seed=v) for v in (1, 2)}
    return root, expected


@pytest.fixture(scope="session")
def mlp(exported):
    """That repository served, both versions and the label "stable"."""
    root, expected = exported
    labels = {"mlp": {"stable": 1}}
    with serving(root, expected=expected, versions="all", labels=labels) as served:
        yield served


@pytest.fixture(params=["socket", "asgi"])
def ask(request, mlp):
    """Asks the server: `ask(method, path, body, headers)`."""
    return mlp.ask if request.param == "socket" else mlp.ask_asgi
