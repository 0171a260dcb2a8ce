# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Bodies of requests, and answers with an end when their client goes away."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from dovetail_infer.server.access import VISIT, Visit
from dovetail_infer.server.errors import ApiError, failed

_log = logging.getLogger("dovetail_infer.server")
T = TypeVar("T")


class Disconnected(Exception):
    """The client closed the connection before its answer."""


async def read_json(request: Request, limit: int) -> Any:
    """Returns the body as a JSON value.

    Args:
        request: The request; nothing of its body has been read.
        limit: Largest body in bytes.

    Raises:
        ApiError: It is too large, or not JSON.
        Disconnected: The client has gone.
    """
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length) > limit:
        raise _too_large(f"Content-Length: {length}", limit)
    if "content-encoding" in request.headers:
        raise ApiError(
            "the body must be sent as it is, got the header Content-Encoding; leave it out",
            status=415,
        )
    chunks, size, more = [], 0, True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        chunks.append(message.get("body", b""))
        more = message.get("more_body", False)
        size += len(chunks[-1])
        if size > limit:
            raise _too_large(f"{size} bytes", limit)
    try:
        return orjson.loads(b"".join(chunks))
    except orjson.JSONDecodeError as error:
        raise ApiError(f"the body must be JSON, got {size} bytes: {error}; correct it") from None


async def unless_gone(receive: Receive, work: Awaitable[T]) -> T:
    """Returns the result of `work`, or cancels it when the client goes away.

    Args:
        receive: Of a request, after its body.
        work: Makes the answer.

    Raises:
        Disconnected: The client has gone.
    """
    task: asyncio.Future[T] = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_until_gone(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise Disconnected
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


class EventStream(Response):
    """Server-sent events: each `data: {...}`, and `data: [DONE]` at the end.

    Args:
        events: Objects to send. An `ApiError` is sent as the last one.
        headers: More headers.
        close: Ends what the events come from; called once, also where no event was asked for.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[Any, None],
        headers: Mapping[str, str],
        *,
        close: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", **headers})
        del self.headers["content-length"]
        self._events, self._close, self._ended = events, close, False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the events until they end or the client goes away."""
        visit: Visit = scope[VISIT]

        async def noted() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect" and not self._ended:
                visit.reasons.add("disconnect")
            return message

        try:
            with contextlib.suppress(Disconnected):
                await unless_gone(noted, self._send(send, visit))
        finally:
            await self._events.aclose()
            await self._close()

    async def _send(self, send: Send, visit: Visit) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        try:
            async for event in self._events:
                await send(_body(orjson.dumps(event)))
            await send(_body(b"[DONE]"))
        except ApiError as error:
            visit.reasons.add(error.code or "error")
            await send(_body(orjson.dumps(error.body())))
        except Exception:  # the response has begun: its status cannot say so any more
            _log.exception("a stream failed")
            visit.reasons.add("error")
            await send(_body(orjson.dumps(failed().body())))
        self._ended = True  # servers tell of a client's end after each answer
        await send({"type": "http.response.body", "body": b""})


def _body(data: bytes) -> dict[str, Any]:
    return {"type": "http.response.body", "body": b"data: %b\n\n" % data, "more_body": True}


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _too_large(came: str, limit: int) -> ApiError:
    return ApiError(f"the body must have at most {limit} bytes, got {came}; send less", status=413)
