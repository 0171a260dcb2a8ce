# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`Application`: the routes of a server, with keys, limits, a log and answers to errors."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from dovetail_infer.engine import Engine
from dovetail_infer.server import page
from dovetail_infer.server.access import VISIT, Visit
from dovetail_infer.server.answering import Answering, json_response
from dovetail_infer.server.errors import ApiError, failed, of_engine, stopping
from dovetail_infer.server.exchange import Disconnected
from dovetail_infer.server.fields import ignored
from dovetail_infer.server.limits import Account, KeyLimits, account_of
from dovetail_infer.server.metrics import CONTENT_TYPE

_log = logging.getLogger("dovetail_infer.server")
# Open without a key: probes of an orchestrator carry none, and the page asks a person for one.
_OPEN = frozenset({"/", "/health", "/ready"})
_METERED = frozenset({"/v1/completions", "/v1/chat/completions"})  # those that run the model
_WARNED = 20  # names of ignored fields in a header


class Application:
    """The application of `app`.

    Args:
        engine: The engine.
        answering: The routes with a body.
        api_keys: Keys, or () for none.
        limits: Limits of each key.
        lenient: Ignore unknown fields, with a warning.
        access_log: Called with the entry of each request, or None.

    Attributes:
        draining: New requests are refused with 503.
        running: Number of requests without a whole answer.
    """

    def __init__(
        self,
        engine: Engine,
        answering: Answering,
        *,
        api_keys: Sequence[str],
        limits: KeyLimits,
        lenient: bool,
        access_log: Callable[[dict[str, Any]], object] | None,
    ) -> None:
        self.draining, self.running = False, 0
        self._engine, self._models = engine, answering.models
        self._accounts = [Account(key, limits, time.monotonic()) for key in api_keys or ("",)]
        self._access_log, self._lenient = access_log, lenient
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
            await self._visit(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    def refuse(self, status: int, message: str) -> bytes:
        """Notes a request that its connection refused. Returns the body of the answer."""
        visit = Visit(request_id=secrets.token_hex(16), route="", status=status)
        visit.reasons.add("unavailable" if status == 503 else "malformed")
        self._metrics.responses.labels("", str(status)).inc()
        self._count(visit)
        return orjson.dumps(ApiError(message, status=status).body())

    async def _visit(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = _request_id(Request(scope))
        visit = scope[VISIT] = Visit(request_id=request_id, route=scope["path"][:128])
        self.running += 1
        try:
            await self._routes(scope, receive, send)
        except asyncio.CancelledError:
            visit.reasons.add("shutdown")
            raise
        finally:
            self.running -= 1
            self._count(visit)

    def _count(self, visit: Visit) -> None:
        entry = visit.end()
        if visit.queued_s is not None:
            self._metrics.queue_s.observe(visit.queued_s)
        if self._access_log is not None:
            self._access_log(entry)

    def _answering(
        self, path: str, endpoint: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Returns an endpoint with a key, an id, and answers to its errors."""

        async def answer(request: Request) -> Response:
            visit: Visit = request.scope[VISIT]
            visit.route = path
            unknown: list[str] = []
            ignored.set(unknown if self._lenient else None)
            try:
                self._admit(visit, request)
                response = await endpoint(request)
            except ApiError as error:
                response = self._refuse(visit, error)
            except Disconnected:
                visit.reasons.add("disconnect")
                response = Response(status_code=499)  # nobody reads it
            except Exception:
                _log.exception("request %s failed", visit.request_id)
                response = self._refuse(visit, failed())
            if visit.account is not None and path in _METERED:
                response.headers.update(visit.account.headers(time.monotonic()))
            # A client that waits for 100 Continue sends no body after another answer.
            if self.draining or (visit.reasons and "expect" in request.headers):
                response.headers["connection"] = "close"
            if unknown:
                response.headers["warning"] = _warning(unknown)
            response.headers["x-request-id"] = visit.request_id
            visit.status = response.status_code
            self._metrics.responses.labels(path, str(response.status_code)).inc()
            return response

        return answer

    def _admit(self, visit: Visit, request: Request) -> None:
        """Raises ApiError for a request that is refused whatever its body says."""
        path = visit.route
        if path not in _OPEN:
            visit.account = account_of(request.headers.get("authorization", ""), self._accounts)
        if self.draining and path not in ("/health", "/ready", "/metrics"):
            raise stopping()
        if visit.account is not None and path in _METERED:
            visit.account.begin(time.monotonic())
            visit.running = True
            try:
                self._engine.admit()
            except RuntimeError as error:
                raise of_engine(error, ()) from error

    def _refuse(self, visit: Visit, error: ApiError) -> Response:
        """Notes an error, and returns its answer."""
        visit.reasons.add(error.code or ("error" if error.status >= 500 else "refused"))
        key = "" if visit.account is None else visit.account.name
        self._metrics.refused.labels(key, error.code or "").inc()
        return json_response(error.body(), error.status, error.headers)

    async def _no_route(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        # Not request.url: that raises for a query that is not UTF-8.
        path, allowed = request.scope["path"][:128], (error.headers or {}).get("Allow")
        if error.status_code == 405:
            message = f"the method of {path} must be {allowed}, got {request.method[:20]}"
        else:
            message = f"the path must be one of {', '.join(self._paths)}, got {path!r}"
        visit: Visit = request.scope[VISIT]
        visit.status = error.status_code
        answer = self._refuse(visit, ApiError(f"{message}; correct it", status=error.status_code))
        answer.headers.update(error.headers or {})
        answer.headers["x-request-id"] = visit.request_id
        self._metrics.responses.labels("", str(error.status_code)).inc()
        return answer

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


def _warning(unknown: Sequence[str]) -> str:
    """Returns the header about ignored fields, RFC 7234, section 5.5."""
    names = ", ".join(unknown[:_WARNED])
    shown = "".join(c if c.isascii() and c.isprintable() and c not in '"\\' else "?" for c in names)
    more = f" and {len(unknown) - _WARNED} more" if len(unknown) > _WARNED else ""
    return f'199 - "unknown fields are ignored: {shown}{more}"'


async def _live(receive: Receive, send: Send) -> None:
    """Answers the messages of a start and an end."""
    while True:
        message: Message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
