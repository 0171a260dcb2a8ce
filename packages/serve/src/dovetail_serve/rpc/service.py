# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The service of the Open Inference Protocol over a `Server`, as handlers of `grpc.aio`.

Handlers receive the bytes of a message and parse them here, so that a malformed message is refused
in a sentence. gRPC cancels the task of a call whose client has gone or whose deadline has passed,
and a cancelled `Server.infer` drops its request.
"""

import hmac
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from dovetail_serve.errors import BundleError, RequestError
from dovetail_serve.rpc.messages import (
    check_number,
    check_outputs,
    read_limits,
    read_request,
    write_response,
)
from dovetail_serve.rpc.status import Refusal, abort
from dovetail_serve.rpc.stream import answer_stream
from dovetail_serve.rpc.wire import MESSAGES, SERVICE, message
from dovetail_serve.serving import documents
from dovetail_serve.serving.bodies import Bodies
from dovetail_serve.serving.server import Server

# Load balancers ask for them without a token.
_OPEN = ("ServerLive", "ServerReady")
_UNSERVED = {
    **dict.fromkeys(
        [
            f"{kind}SharedMemory{action}"
            for kind in ("System", "Cuda")
            for action in ("Status", "Register", "Unregister")
        ],
        "this server has no shared memory; send tensors in raw_input_contents",
    ),
    "TraceSetting": "this server has no trace settings; its statistics have the time of each stage",
    "LogSettings": "this server has no log settings; configure the logger 'dovetail_serve'",
}

Handler = Callable[[Any, Any], Awaitable[Any]]


class Service:
    """Answers the calls of the protocol.

    Args:
        server: The models.
        token: Bearer token that calls must have in their metadata, but for `ServerLive` and
            `ServerReady`. None for no check.
        control: Whether clients may load and unload models.
        max_body: Largest message in bytes. Those of all open calls have a bound together.
    """

    def __init__(self, server: Server, *, token: str | None, control: bool, max_body: int) -> None:
        self._server, self._control = server, control
        self._bodies = Bodies(max_body)
        self._token = None if token is None else token.encode()

    def handlers(self) -> grpc.GenericRpcHandler:
        """Returns all handlers of the service."""
        unary: dict[str, Handler] = {
            "ServerLive": self._server_live,
            "ServerReady": self._server_ready,
            "ServerMetadata": self._server_metadata,
            "ModelReady": self._model_ready,
            "ModelMetadata": self._model_metadata,
            "ModelConfig": self._model_config,
            "ModelInfer": self._model_infer,
            "ModelStatistics": self._model_statistics,
            "RepositoryIndex": self._repository_index,
            "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
        }
        methods = {name: self._unary(name, handler) for name, handler in unary.items()}
        methods |= {name: _unserved(sentence) for name, sentence in _UNSERVED.items()}
        methods["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(self._stream)
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def infer(self, request: Any, context: Any) -> Any:
        """Returns the response to a `ModelInferRequest`. Raises RequestError."""
        # First, because decoding takes time. gRPC has read the message before it calls this.
        priority, timeout_s = read_limits(request)
        model = self._server.admit(
            request.model_name,
            version=request.model_version or None,
            priority=priority,
            deadline_s=_deadline_s(timeout_s, context),
        )
        signature = model.signature
        check_number(len(request.inputs), signature.inputs)
        call = read_request(request)
        check_outputs(call.outputs, signature.outputs)
        answer = await self._server.infer(
            call.model,
            call.inputs,
            version=call.version,
            priority=call.priority,
            deadline_s=_deadline_s(call.timeout_s, context),
        )
        return write_response(call, answer)

    def _unary(self, name: str, handler: Handler) -> Any:
        """Returns a method handler. It parses, answers, and turns errors into statuses."""
        parse = MESSAGES[f"{name}Request"].FromString
        protected = name not in _OPEN

        async def answer(data: bytes, context: Any) -> bytes:
            try:
                if protected:
                    self.authenticate(context)
                with self._bodies.holding(len(data)):
                    response = await handler(parse(data), context)
                return response.SerializeToString()
            except Exception as error:
                await abort(context, error, name)
                raise  # not reached: `abort` raises

        return grpc.unary_unary_rpc_method_handler(answer)

    async def _stream(self, requests: Any, context: Any) -> None:
        try:
            self.authenticate(context)
        except Refusal as refusal:
            await abort(context, refusal, "ModelStreamInfer")
        await answer_stream(self.infer, context, self._bodies)

    def authenticate(self, context: Any) -> None:
        """Raises Refusal if the call lacks the token that the server has."""
        if self._token is None:
            return
        for key, value in context.invocation_metadata() or ():
            if key == "authorization":
                scheme, _, token = str(value).partition(" ")
                # Compared in a time that does not depend on the first byte that differs.
                same = hmac.compare_digest(token.encode(), self._token)
                if same and scheme.lower() == "bearer":
                    return
        raise Refusal(
            grpc.StatusCode.UNAUTHENTICATED,
            "calls must have the server's token, got none or another; send the metadata "
            "('authorization', 'Bearer TOKEN')",
        )

    async def _server_live(self, request: Any, context: Any) -> Any:
        return MESSAGES["ServerLiveResponse"](live=self._server.live)

    async def _server_ready(self, request: Any, context: Any) -> Any:
        return MESSAGES["ServerReadyResponse"](ready=self._server.ready)

    async def _server_metadata(self, request: Any, context: Any) -> Any:
        return message("ServerMetadataResponse", documents.server_metadata())

    async def _model_ready(self, request: Any, context: Any) -> Any:
        try:
            ready = self._server.model_ready(request.name, request.version or None)
        except RequestError:
            ready = False  # as Triton answers for a model that it does not have
        return MESSAGES["ModelReadyResponse"](ready=ready)

    async def _model_metadata(self, request: Any, context: Any) -> Any:
        metadata = self._server.metadata(request.name, request.version or None)
        return message("ModelMetadataResponse", documents.model_metadata(metadata))

    async def _model_config(self, request: Any, context: Any) -> Any:
        metadata = self._server.metadata(request.name, request.version or None)
        return message("ModelConfigResponse", {"config": documents.model_config(metadata)})

    async def _model_infer(self, request: Any, context: Any) -> Any:
        return await self.infer(request, context)

    async def _model_statistics(self, request: Any, context: Any) -> Any:
        statistics = documents.model_statistics(self._server, request.name, request.version or None)
        return message("ModelStatisticsResponse", statistics)

    async def _repository_index(self, request: Any, context: Any) -> Any:
        _check_repository(request)
        index = documents.repository_index(self._server.index(), ready=request.ready)
        return message("RepositoryIndexResponse", {"models": index})

    async def _load(self, request: Any, context: Any) -> Any:
        self._check_control(request, ())
        try:
            await self._server.load(request.model_name)
        except RequestError:
            raise
        except (BundleError, OSError, ValueError) as error:
            raise Refusal(grpc.StatusCode.FAILED_PRECONDITION, str(error)) from error
        return MESSAGES["RepositoryModelLoadResponse"]()

    async def _unload(self, request: Any, context: Any) -> Any:
        # Triton's clients always send it. No model here depends on another.
        self._check_control(request, ("unload_dependents",))
        await self._server.unload(request.model_name)
        return MESSAGES["RepositoryModelUnloadResponse"]()

    def _check_control(self, request: Any, parameters: tuple[str, ...]) -> None:
        if not self._control:
            raise Refusal(
                grpc.StatusCode.PERMISSION_DENIED,
                "the server must allow control of its models, and was started with control=False; "
                "start it with --control, or control=True in Python",
            )
        _check_repository(request)
        if unknown := sorted(request.parameters.keys() - set(parameters)):
            raise RequestError(
                f"parameters must be among {', '.join(parameters) or 'none'}, got "
                f"{unknown[0][:80]!r}; the bundle has the model's configuration, leave it out"
            )


def _deadline_s(timeout_s: float | None, context: Any) -> float | None:
    """Returns the seconds to the earlier of a request's timeout and its call's deadline."""
    limits = [s for s in (timeout_s, context.time_remaining()) if s is not None]
    return min(limits, default=None)


def _check_repository(request: Any) -> None:
    if request.repository_name:
        raise RequestError(
            "the server has one repository, without a name, got repository_name="
            f"{request.repository_name[:80]!r}; leave it out"
        )


def _unserved(sentence: str) -> Any:
    async def refuse(data: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, sentence)
        return b""  # not reached: `abort` raises

    return grpc.unary_unary_rpc_method_handler(refuse)
