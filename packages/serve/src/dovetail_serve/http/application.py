# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`Application`: the ASGI application. It looks at each request once and hands it to a route."""

import hmac
import logging
import time

import orjson

from dovetail_serve.errors import RequestError
from dovetail_serve.http.access import LOGGER, AccessLog, RequestIds, log_access, log_refusal
from dovetail_serve.http.exchange import (
    Disconnected,
    Exchange,
    Message,
    Receive,
    Send,
    internal_error,
)
from dovetail_serve.http.infer import Inference, target
from dovetail_serve.http.routes import Routes, method_error
from dovetail_serve.http.stages import Stages
from dovetail_serve.serving.bodies import Bodies
from dovetail_serve.serving.server import Server

_log = logging.getLogger("dovetail_serve")
# Open without the token. Probes of an orchestrator carry none, and the page holds no figures.
_OPEN = frozenset({"/", "/v2/health/live", "/v2/health/ready"})


class Application:
    """Answers requests of the Open Inference Protocol for a server.

    `dovetail_serve.http.asgi.app` makes it.

    Args:
        server: The server.
        max_body: Largest body in bytes, as sent and decompressed. `parse` bounds the document.
        token: Bearer token of requests, or None for no check.
        control: Open the routes for loading and unloading.
        access_log: Style of the access log, or None for no log.

    Attributes:
        draining: Set it before a shutdown: readiness then answers 503.
    """

    def __init__(
        self,
        server: Server,
        *,
        max_body: int,
        token: str | None,
        control: bool,
        access_log: AccessLog | None,
    ) -> None:
        self.draining = False
        self._server = server
        self._bodies = Bodies(max_body)
        self._access_log: AccessLog | None = access_log
        self._token = token.encode() if token is not None else None
        self._ids, self._stages = RequestIds(), Stages()
        self._inference = Inference(server, self._stages, max_body)
        self._routes = Routes(
            server, self._stages, draining=self._is_draining, control=control
        ).application()

    def _is_draining(self) -> bool:
        return self.draining

    def refuse(self, status: int, sentence: str, client: str) -> bytes:
        """Counts and logs a request that its connection refused. Returns the body of the answer.

        Args:
            status: Status of the answer.
            sentence: Its message.
            client: The client's address.
        """
        self._stages.responded(status)
        if self._access_log is not None and LOGGER.isEnabledFor(logging.INFO):
            log_refusal(self._access_log, self._ids.choose(None), client, status)
        return orjson.dumps({"error": sentence})

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answers one request, or takes part in the life of the program around it."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _answer(self, scope: Message, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        headers: dict[bytes, bytes] = dict(scope["headers"])
        request_id = self._ids.choose(headers.get(b"x-request-id"))
        exchange = Exchange(
            scope, receive, send, headers, request_id, self._bodies, self._is_draining
        )
        try:
            await self._dispatch(exchange)
        except RequestError as error:
            await exchange.refuse(error)
        except Disconnected:
            pass  # nobody reads an answer; the status below counts it as 499
        except Exception:
            await self._fail(exchange)
        finally:
            exchange.release()
        self._stages.responded(exchange.status or 499)
        if self._access_log is not None and LOGGER.isEnabledFor(logging.INFO):
            log_access(self._access_log, exchange, time.perf_counter() - began)

    async def _dispatch(self, exchange: Exchange) -> None:
        scope = exchange.scope
        # Below a mount, the path still has the mount's own.
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if self._token is not None and path not in _OPEN and not self._allowed(exchange):
            await exchange.refuse_with(
                401,
                "a request must have the server's token, got none or another; send the header "
                "Authorization: Bearer TOKEN",
                headers=[(b"www-authenticate", b"Bearer")],
            )
            return
        model = target(path)
        if model is None:
            scope["dovetail_serve.exchange"] = exchange
            await self._routes(scope, exchange.receive, exchange.send)
        elif scope["method"] == "POST":
            await self._inference.answer(exchange, model)
        else:
            sentence = method_error(scope["method"], "POST")
            await exchange.refuse_with(405, sentence, headers=[(b"allow", b"POST")])

    def _allowed(self, exchange: Exchange) -> bool:
        scheme, _, token = exchange.headers.get(b"authorization", b"").partition(b" ")
        # In a time that does not depend on how much of the token is right.
        return hmac.compare_digest(token, self._token or b"") and scheme.lower() == b"bearer"

    async def _fail(self, exchange: Exchange) -> None:
        """Answers an error of ours, and logs its traceback."""
        _log.exception("request_id=%s failed", exchange.request_id)
        if not exchange.status:
            await exchange.refuse_with(500, internal_error(exchange.request_id))

    async def _live(self, receive: Receive, send: Send) -> None:
        """Starts the server with the program, and stops it."""
        await receive()
        try:
            await self._server.start()
        except Exception as error:
            _log.exception("the server could not start")
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self.draining = True
        await self._server.stop()
        await send({"type": "lifespan.shutdown.complete"})
