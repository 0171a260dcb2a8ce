# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The route of inference requests. Nearly all requests take it, so it is plain ASGI."""

import asyncio
import functools
import re
import time
from typing import NamedTuple

from dovetail_serve.http.admission import Admission
from dovetail_serve.http.exchange import Disconnected, Exchange, Headers, json_length
from dovetail_serve.http.messages import InferRequest, build, check_outputs, parse
from dovetail_serve.http.stages import Stages, server_timing
from dovetail_serve.http.watch import Watches
from dovetail_serve.serving.answer import Answer
from dovetail_serve.serving.garbage import collection_off
from dovetail_serve.serving.server import Server

_PATH = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?/infer")


class Target(NamedTuple):
    """A model, and a version or a label of it, or None for the latest."""

    model: str
    version: str | None


@functools.lru_cache(maxsize=1024)
def target(path: str) -> Target | None:
    """Returns the model of an inference path, or None for other paths."""
    match = _PATH.fullmatch(path)
    return Target(match[1], match[2]) if match else None


class Inference:
    """Answers inference requests.

    Args:
        server: Runs the models.
        stages: Takes the times of the requests.
        max_body: Largest body in bytes. `parse` bounds the JSON document in it.
    """

    def __init__(self, server: Server, stages: Stages, max_body: int) -> None:
        self._server, self._stages, self._max_body = server, stages, max_body
        self._watches = Watches()

    async def answer(self, exchange: Exchange, target: Target) -> None:
        """Answers one request to a model.

        Raises:
            RequestError: The request cannot be answered. Nothing was sent.
            Disconnected: The client went away. Waiting work was dropped.
        """
        admission = Admission(self._server, target, exchange.headers)
        body = await exchange.body(self._max_body, admission.ask)
        began = time.perf_counter()
        admission.ask_before_decoding(body)
        model = self._server.model(target.model, target.version)
        length = json_length(exchange.headers, len(body))
        # Not on a thread: parsing holds the interpreter's lock, so others would wait as long.
        with collection_off():
            request = parse(body, length, model=target.model, version=target.version)
        request = request._replace(options=admission.merge(request.options))
        if request.outputs is not None:
            check_outputs(request, tuple(model.signature.outputs))
        answer = await self._watched(exchange, target, request)
        computed = time.perf_counter()
        # Checks of the inputs come before the queue and belong to decoding.
        decode_s = computed - began - answer.timing.total_s
        response, length = build(request, answer)
        headers: Headers = []
        content_type = b"application/json"
        if length is not None:
            content_type = b"application/octet-stream"
            headers.append((b"inference-header-content-length", b"%d" % length))
        if request.options.explain:
            encode_s = time.perf_counter() - computed
            headers.append((b"server-timing", server_timing(decode_s, answer.timing, encode_s)))
        await exchange.respond(200, response, content_type=content_type, headers=headers)
        encode_s = time.perf_counter() - computed
        self._stages.answered(answer.model, answer.version, decode_s, encode_s)

    async def _watched(self, exchange: Exchange, target: Target, request: InferRequest) -> Answer:
        """Returns the answer, unless the client goes away before."""
        watch = self._watches.begin(exchange.receive)
        try:
            return await self._server.infer(
                target.model,
                request.inputs,
                version=target.version,
                priority=request.options.priority or 0,
                deadline_s=request.options.deadline_s,
            )
        except asyncio.CancelledError:
            if not watch.disconnected:
                raise
            watch.forgive()
            raise Disconnected from None
        finally:
            self._watches.end(watch)
