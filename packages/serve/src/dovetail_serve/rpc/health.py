# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""gRPC's health checks (grpc.health.v1), which Kubernetes and load balancers call.

The service "" is the whole server, and any other name is a model. Probes carry no token, so the
server's state is open; that of a model needs the token, like `ModelReady`.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import grpc

from dovetail_serve.errors import ModelNotFound
from dovetail_serve.rpc.status import Refusal, abort
from dovetail_serve.rpc.wire import HEALTH_MESSAGES, HEALTH_SERVICE
from dovetail_serve.serving.server import Server

SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3
# Interval of the looks at the state behind a `Watch`.
LOOK_S = 1.0
# Open watches: a client with health checking has one for each of its connections.
MAX_WATCHES = 1024

_REQUEST, _RESPONSE = HEALTH_MESSAGES["HealthCheckRequest"], HEALTH_MESSAGES["HealthCheckResponse"]


class Health:
    """Answers health checks.

    Args:
        server: The models.
        authenticate: Raises an error if a call lacks the token.
    """

    def __init__(self, server: Server, authenticate: Callable[[Any], None]) -> None:
        self._server, self._authenticate = server, authenticate
        self._closed = asyncio.Event()
        self._watches = 0

    def handlers(self) -> grpc.GenericRpcHandler:
        """Returns the handlers of the service."""
        methods = {
            "Check": grpc.unary_unary_rpc_method_handler(self._check),
            "Watch": grpc.unary_stream_rpc_method_handler(self._watch),
        }
        return grpc.method_handlers_generic_handler(HEALTH_SERVICE, methods)

    def close(self) -> None:
        """Ends all watches, after a last message that says NOT_SERVING."""
        self._closed.set()

    async def _check(self, data: bytes, context: Any) -> bytes:
        try:
            status = self._status(self._service(data, context))
        except Exception as error:
            await abort(context, error, "Check")
            raise  # not reached: `abort` raises
        return _RESPONSE(status=status).SerializeToString()

    async def _watch(self, data: bytes, context: Any) -> None:
        self._watches += 1
        try:
            await self._watch_until_closed(data, context)
        finally:
            self._watches -= 1

    async def _watch_until_closed(self, data: bytes, context: Any) -> None:
        try:
            service = self._service(data, context)
            if self._watches > MAX_WATCHES:
                raise Refusal(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    f"a server must have at most {MAX_WATCHES} watches, got one more; call Check",
                )
        except Exception as error:
            await abort(context, error, "Watch")
            raise  # not reached: `abort` raises
        sent = None
        while True:
            # Before the status: `close` may come during a write, and the last message after it.
            closed = self._closed.is_set()
            try:
                status = self._status(service)
            except ModelNotFound:
                status = SERVICE_UNKNOWN
            if status != sent:
                await context.write(_RESPONSE(status=status).SerializeToString())
                sent = status
            if closed:
                return
            with contextlib.suppress(TimeoutError):  # time to look at the state again
                await asyncio.wait_for(self._closed.wait(), LOOK_S)

    def _service(self, data: bytes, context: Any) -> str:
        service = _REQUEST.FromString(data).service
        if service:
            self._authenticate(context)
        return service

    def _status(self, service: str) -> int:
        """Returns the status of the server or a model. Raises ModelNotFound."""
        ready = self._server.model_ready(service) if service else self._server.ready
        return SERVING if ready and not self._closed.is_set() else NOT_SERVING
