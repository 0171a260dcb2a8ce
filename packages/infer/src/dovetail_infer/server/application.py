# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`Application`: the routes of a server, with keys, ids of requests and answers to errors."""

from __future__ import annotations

import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from dovetail_infer.engine import Engine
from dovetail_infer.server import page
from dovetail_infer.server.answering import Answering, json_response
from dovetail_infer.server.errors import ApiError, failed, stopping
from dovetail_infer.server.exchange import Disconnected
from dovetail_infer.server.metrics import CONTENT_TYPE

_log = logging.getLogger("dovetail_infer.server")
# Open without a key: probes of an orchestrator carry none, and the page asks a person for one.
_OPEN = frozenset({"/", "/health", "/ready"})


class Application:
    """The application of `app`.

    Args:
        engine: The engine.
        answering: The routes with a body.
        api_keys: Keys, or () for none.

    Attributes:
        draining: New requests are refused with 503.
    """

    def __init__(self, engine: Engine, answering: Answering, *, api_keys: Sequence[str]) -> None:
        self.draining = False
        self._engine, self._models = engine, answering.models
        self._keys = [key.encode() for key in api_keys]
        self._metrics = answering.metrics
        routes = {
            ("GET", "/"): page.show,
            ("GET", "/health"): self._health,
            ("GET", "/ready"): self._ready,
            ("GET", "/metrics"): self._show_metrics,
            ("GET", "/v1/models"): self._list_models,
            ("GET", "/v1/models/{model:path}"): self._show_model,
            ("POST", "/v1/completions"): answering.complete,
            ("POST", "/v1/chat/completions"): answering.complete_chat,
            ("POST", "/v1/load_lora_adapter"): answering.load_adapter,
            ("POST", "/v1/unload_lora_adapter"): answering.unload_adapter,
            ("POST", "/tokenize"): answering.tokenize,
            ("POST", "/detokenize"): answering.detokenize,
        }
        self._paths = [path for _, path in routes]
        self._routes = Starlette(
            routes=[
                Route(path, self._answering(path, endpoint), methods=[method])
                for (method, path), endpoint in routes.items()
            ],
            exception_handlers={HTTPException: self._no_route},
        )
        self._routes.router.redirect_slashes = False  # a redirect is no error of OpenAI's form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request, or takes part in the life of the program around it."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] == "http":
            await self._routes(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _answering(
        self, path: str, endpoint: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Returns an endpoint with a key, an id, and answers to its errors."""

        async def answer(request: Request) -> Response:
            try:
                if path not in _OPEN:
                    self._check_key(request)
                if self.draining and path not in ("/health", "/ready", "/metrics"):
                    raise stopping()
                response = await endpoint(request)
            except ApiError as error:
                response = json_response(error.body(), error.status, error.headers)
            except Disconnected:
                response = Response(status_code=499)  # nobody reads it
            except Exception:
                _log.exception("a request failed")
                error = failed()
                response = json_response(error.body(), 500)
            response.headers["x-request-id"] = _request_id(request)
            self._metrics.responses.labels(path, str(response.status_code)).inc()
            return response

        return answer

    def _check_key(self, request: Request) -> None:
        if not self._keys:
            return
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        # All are compared, in a time that does not depend on how much of one is right.
        same = [hmac.compare_digest(key.encode("latin-1"), known) for known in self._keys]
        if scheme.lower() != "bearer" or not any(same):
            raise ApiError(
                "a request must have one of the server's keys, got none or another; send the "
                "header Authorization: Bearer KEY",
                status=401,
                code="invalid_api_key",
            )

    async def _no_route(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        # Not request.url: that raises for a query that is not UTF-8.
        path, allowed = request.scope["path"][:128], (error.headers or {}).get("Allow")
        if error.status_code == 405:
            message = f"the method of {path} must be {allowed}, got {request.method[:20]}"
        else:
            message = f"the path must be one of {', '.join(self._paths)}, got {path!r}"
        answer = ApiError(f"{message}; correct it", status=error.status_code)
        self._metrics.responses.labels("", str(error.status_code)).inc()
        return json_response(answer.body(), error.status_code, dict(error.headers or {}))

    async def _health(self, request: Request) -> Response:
        self._engine.stats()  # the lock of its queue is free
        return json_response({"status": "alive"})

    async def _ready(self, request: Request) -> Response:
        if self.draining:
            raise stopping()
        return json_response({"status": "ready"})

    async def _show_metrics(self, request: Request) -> Response:
        return Response(self._metrics.exposition(), media_type=CONTENT_TYPE)

    async def _list_models(self, request: Request) -> Response:
        return json_response({"object": "list", "data": self._models.cards()})

    async def _show_model(self, request: Request) -> Response:
        return json_response(self._models.card(request.path_params["model"]))


def _request_id(request: Request) -> str:
    """Returns the client's id if it is fit for a header, or a new one."""
    given = request.headers.get("x-request-id", "")
    fit = 0 < len(given) <= 128 and given.isascii() and given.isprintable()
    return given if fit else secrets.token_hex(16)


async def _live(receive: Receive, send: Send) -> None:
    """Answers the messages of a start and an end."""
    while True:
        message: Message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
