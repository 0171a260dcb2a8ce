# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""All routes except inference: health, metadata, statistics, repository, status."""

from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from dovetail_serve.errors import BundleError, RequestError
from dovetail_serve.http.exchange import Exchange, internal_error
from dovetail_serve.http.metrics import CONTENT_TYPE, exposition
from dovetail_serve.http.stages import Stages
from dovetail_serve.http.status import status_document
from dovetail_serve.serving import documents
from dovetail_serve.serving.server import Server

# A control request names a model and little else.
_MAX_CONTROL_BODY = 64 << 10
_MODEL = ("/v2/models/{model}", "/v2/models/{model}/versions/{version}")
# Triton's extensions that need memory shared with clients, or change the server at run time.
_ABSENT = {
    "/v2/systemsharedmemory/{rest:path}": "shared memory",
    "/v2/cudasharedmemory/{rest:path}": "shared memory",
    "/v2/tpusharedmemory/{rest:path}": "shared memory",
    "/v2/trace/setting": "trace settings",
    "/v2/models/{model}/trace/setting": "trace settings",
    "/v2/logging": "log settings",
}
_ANY = ("GET", "POST", "PUT", "DELETE", "PATCH")

Endpoint = Callable[[Request], Any]


class Routes:
    """Endpoints over one server.

    Args:
        server: Runs the models.
        stages: Times of decoding and encoding.
        draining: Returns whether the server is about to stop.
        control: Allow clients to load and unload models.
    """

    def __init__(
        self, server: Server, stages: Stages, *, draining: Callable[[], bool], control: bool
    ) -> None:
        self._server, self._stages = server, stages
        self._draining, self._control = draining, control

    def application(self) -> Starlette:
        """Returns the ASGI application. An error of ours is raised again after its response."""
        routes = [
            Route("/", self.page),
            Route("/status", self.status),
            Route("/metrics", self.metrics),
            Route("/v2", self.metadata),
            Route("/v2/health/live", self.live),
            Route("/v2/health/ready", self.ready),
            # Triton's path for all models; it would be the metadata of a model of this name.
            Route("/v2/models/stats", self.all_statistics),
            *(Route(path, self.model_metadata) for path in _MODEL),
            *(Route(f"{path}/ready", self.model_ready) for path in _MODEL),
            *(Route(f"{path}/config", self.model_config) for path in _MODEL),
            *(Route(f"{path}/stats", self.model_statistics) for path in _MODEL),
            Route("/v2/repository/index", self.index, methods=["POST"]),
            Route("/v2/repository/models/{model}/load", self.load, methods=["POST"]),
            Route("/v2/repository/models/{model}/unload", self.unload, methods=["POST"]),
            *(Route(path, absent(what), methods=_ANY) for path, what in _ABSENT.items()),
        ]
        handlers: Mapping[Any, Any] = {
            HTTPException: _http_error,
            RequestError: _request_error,
            Exception: _internal_error,
        }
        application = Starlette(routes=routes, exception_handlers=handlers)
        application.router.redirect_slashes = False
        return application

    async def page(self, request: Request) -> Response:
        """The status page. It holds no figures itself, so it needs no token."""
        return HTMLResponse((files("dovetail_serve.http") / "status.html").read_text("utf-8"))

    async def status(self, request: Request) -> Response:
        """The figures of the status page."""
        return _json(status_document(self._server, self._stages, draining=self._draining()))

    async def metrics(self, request: Request) -> Response:
        return Response(exposition(self._server, self._stages), media_type=CONTENT_TYPE)

    async def metadata(self, request: Request) -> Response:
        return _json(documents.server_metadata())

    async def live(self, request: Request) -> Response:
        return _health(self._server.live, "live")

    async def ready(self, request: Request) -> Response:
        return _health(self._server.ready and not self._draining(), "ready")

    async def model_ready(self, request: Request) -> Response:
        ready = self._server.model_ready(*_named(request)) and not self._draining()
        return _health(ready, "ready")

    async def model_metadata(self, request: Request) -> Response:
        return _json(documents.model_metadata(self._server.metadata(*_named(request))))

    async def model_config(self, request: Request) -> Response:
        return _json(documents.model_config(self._server.metadata(*_named(request))))

    async def model_statistics(self, request: Request) -> Response:
        return _json(documents.model_statistics(self._server, *_named(request)))

    async def all_statistics(self, request: Request) -> Response:
        return _json(documents.model_statistics(self._server))

    async def index(self, request: Request) -> Response:
        document = await _control_document(request)
        ready = document.pop("ready", False)
        if document or not isinstance(ready, bool):
            raise RequestError(
                f'the body of an index request must be empty or {{"ready": true}}, got '
                f"{sorted(document) or ready!r}; leave it out for all versions"
            )
        return _json(documents.repository_index(self._server.index(), ready=ready))

    async def load(self, request: Request) -> Response:
        name = await self._controlled(request)
        try:
            await self._server.load(name)
        except (BundleError, OSError) as error:
            raise RequestError(
                f"model {name!r} must be a bundle that this server can load, got: {error}"
            ) from error
        return _json({})

    async def unload(self, request: Request) -> Response:
        await self._server.unload(await self._controlled(request))
        return _json({})

    async def _controlled(self, request: Request) -> str:
        """Returns the name of the model, if clients may load and unload."""
        if not self._control:
            raise HTTPException(
                403,
                "loading and unloading must be allowed by the server, got a request without that; "
                "start it with --control, or control=True in Python",
            )
        parameters = (await _control_document(request)).get("parameters") or {}
        if not isinstance(parameters, dict):
            raise RequestError(
                f"parameters must be an object, got {str(parameters)[:60]!r}; leave them out"
            )
        # tritonclient sends it with its default; a bundle has no dependents.
        unload_dependents = parameters.pop("unload_dependents", False)
        if parameters or unload_dependents:
            names = sorted(parameters) or ["unload_dependents"]
            raise RequestError(
                "a bundle must be loaded as it is in the repository, without parameters, got "
                f"{', '.join(names)}; save a new version instead"
            )
        return request.path_params["model"]


def absent(what: str) -> Endpoint:
    """Returns the endpoint of an extension absent from this server."""

    async def endpoint(request: Request) -> Response:
        raise HTTPException(
            501,
            f"a request must keep to this server's extensions, {', '.join(documents.EXTENSIONS)}, "
            f"got one for {what}, which it does not have; send tensors in the body",
        )

    return endpoint


def _named(request: Request) -> tuple[str, str | None]:
    return request.path_params["model"], request.path_params.get("version")


def _json(document: object, status: int = 200) -> Response:
    return Response(orjson.dumps(document), status, media_type="application/json")


def _health(healthy: bool, key: str) -> Response:
    return _json({key: healthy}, 200 if healthy else 503)


async def _control_document(request: Request) -> dict[str, Any]:
    exchange: Exchange = request.scope["dovetail_serve.exchange"]
    body = await exchange.body(_MAX_CONTROL_BODY)
    try:
        document = orjson.loads(body or b"{}")
    except orjson.JSONDecodeError as error:
        raise RequestError(
            f"the body must be a JSON object, got {len(body)} bytes: {error}; leave it empty"
        ) from None
    if not isinstance(document, dict):
        raise RequestError(f"the body must be a JSON object, got {document!r}; leave it empty")
    return document


async def _http_error(request: Request, error: HTTPException) -> None:
    exchange: Exchange = request.scope["dovetail_serve.exchange"]
    scope, sentence = exchange.scope, error.detail
    if error.status_code == 404:
        sentence = (
            f"a path must be one of the Open Inference Protocol, got {scope['path'][:128]!r}; "
            "write one such as /v2/models/NAME/infer, or /v2 for the server's metadata"
        )
    elif error.status_code == 405:
        sentence = method_error(scope["method"], (error.headers or {})["Allow"])
    headers = [(k.lower().encode(), v.encode()) for k, v in (error.headers or {}).items()]
    await exchange.refuse_with(error.status_code, sentence, headers=headers)


async def _request_error(request: Request, error: RequestError) -> None:
    exchange: Exchange = request.scope["dovetail_serve.exchange"]
    await exchange.refuse(error)


async def _internal_error(request: Request, error: Exception) -> Response:
    """Starlette sends it and raises the error again, which is logged with its traceback."""
    exchange: Exchange = request.scope["dovetail_serve.exchange"]
    return _json({"error": internal_error(exchange.request_id)}, 500)


def method_error(method: str, allowed: str) -> str:
    """Returns the sentence for a method unknown to a path."""
    return f"the method of this path must be {allowed}, got {method[:40]}; send {allowed}"
