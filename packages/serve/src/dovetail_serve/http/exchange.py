# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`Exchange`: one HTTP request and its response, as plain ASGI messages.

A request may be refused before its body is read. If the body has a length and the client keeps the
connection, it stays open, and the ASGI server drops the body as it comes. Otherwise, and when a
body is refused in the middle, it is read on and dropped for a while after the answer, and the
connection is closed. Closed with unread bytes, it would be reset, and a client that sends its whole
body first (urllib, http.client) would see the reset in place of the answer. A client that waits for
100 Continue has sent none, and its connection is closed at once.
"""

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

import orjson

from dovetail_serve.errors import NotReady, QueueFull, RequestError, TooLarge
from dovetail_serve.http.compression import (
    COMPRESS_FROM_BYTES,
    THREAD_FROM_BYTES,
    accepted,
    compress,
    decompress,
)
from dovetail_serve.serving.bodies import Bodies

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

# Bounds of reading on after a refusal: an upload of 64 MiB at 60 Mbit/s, and four such bodies. A
# client of which nothing comes for a second has read the refusal, or waits for it without a body.
_LINGER_S, _LINGER_IDLE_S, _LINGER_BYTES = 10.0, 1.0, 256 << 20
# A model that is loading needs seconds rather than milliseconds.
_NOT_READY_S = 1
# Key of the scope with a function that tells whether the client has gone. `receive` tells it to
# those alone that wait.
GONE = "dovetail_serve.gone"


class Disconnected(Exception):
    """The client closed the connection before it had sent its request."""


class Exchange:
    """A request and its answer in progress.

    Args:
        scope: ASGI's description of the request; an attribute.
        receive: ASGI's function for the body; an attribute.
        send: ASGI's function for the response, behind the method `send`.
        headers: Values by name in lower case; an attribute.
        request_id: Identifies the request in logs and in the response; an attribute.
        bodies: Bounds the bytes of all bodies that are held.
        draining: Returns whether the server is about to stop; answers then close their connections.

    Attributes:
        status: Status of the response, or 0 before it began.
    """

    __slots__ = (
        "_bodies",
        "_closing",
        "_draining",
        "_expecting",
        "_held",
        "_send",
        "_unread",
        "headers",
        "receive",
        "request_id",
        "scope",
        "status",
    )

    def __init__(
        self,
        scope: Message,
        receive: Receive,
        send: Send,
        headers: dict[bytes, bytes],
        request_id: str,
        bodies: Bodies,
        draining: Callable[[], bool],
    ) -> None:
        self.scope, self.receive, self._send = scope, receive, send
        self.headers, self.request_id, self._draining = headers, request_id, draining
        self.status = 0
        self._bodies, self._held = bodies, 0
        # The client sends its body only after 100 Continue, which the first `receive` sends.
        self._expecting = headers.get(b"expect", b"").lower() == b"100-continue"
        # Part of the body may not be read yet.
        self._unread = b"content-length" in headers or b"transfer-encoding" in headers
        # The connection ends with the answer: the end of the body is far or unknown.
        self._closing = self._unread and (self._expecting or b"content-length" not in headers)

    async def body(self, limit: int, admit: Callable[[], object] = lambda: None) -> bytes:
        """Reads the body and undoes its compression. `release` gives its memory back.

        Args:
            limit: Largest size in bytes, as sent and decompressed.
            admit: Called before the body is read, and before it is decompressed.

        Raises:
            Exception: Of `admit`.
            TooLarge: It is larger. The rest is dropped.
            QueueFull: Bodies of all requests together are too large. The rest is dropped.
            Disconnected: The client is gone.
            RequestError: Its compression is unknown or damaged.
        """
        self._check_length(limit)
        admit()
        self._closing = self._unread
        body = await self._read(limit)
        self._closing = self._unread = False
        if GONE in self.scope and self.scope[GONE]():
            raise Disconnected
        admit()
        encoding = self.headers.get(b"content-encoding")
        if encoding is None:
            return body
        arguments = (body, encoding.decode("latin-1"), limit)
        if len(body) < THREAD_FROM_BYTES:
            result = decompress(*arguments)
        else:
            result = await asyncio.to_thread(decompress, *arguments)
        self._hold(len(result))
        return result

    def release(self) -> None:
        """Gives the memory of the body back. Call it at the end, whatever happened."""
        self._bodies.release(self._held)
        self._held = 0

    def _check_length(self, limit: int) -> None:
        """Raises TooLarge or QueueFull for a declared length."""
        declared = self.headers.get(b"content-length")
        if declared is not None:
            length = _length(declared, "Content-Length")
            if length > limit:
                self._closing = True
                raise _too_large(f"Content-Length: {length}", limit)
            self._bodies.check(length)

    async def _read(self, limit: int) -> bytes:
        """Returns the body as it came."""
        chunks, size, more = [], 0, True
        self._expecting = False
        try:
            while more:
                message = await self.receive()
                if message["type"] == "http.disconnect":
                    raise Disconnected
                chunk, more = message.get("body", b""), message.get("more_body", False)
                chunks.append(chunk)
                size += len(chunk)
                if size > limit:
                    raise _too_large(f"{size} bytes{' and more' if more else ''}", limit)
                self._hold(len(chunk))
        except RequestError:
            # The answer and what follows take time. The error's traceback holds this list.
            chunks.clear()
            self.release()
            raise
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _hold(self, size: int) -> None:
        self._bodies.hold(size)
        self._held += size

    async def respond(
        self,
        status: int,
        body: bytes,
        *,
        content_type: bytes = b"application/json",
        headers: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        """Sends a response, compressed if the client accepts it and it is worth it.

        Args:
            status: Its status.
            body: Its body.
            content_type: Value of Content-Type.
            headers: More headers.
        """
        fields: Headers = [(b"content-type", content_type), *headers]
        if len(body) >= COMPRESS_FROM_BYTES and b"accept-encoding" in self.headers:
            encoding = accepted(self.headers[b"accept-encoding"].decode("latin-1"))
            if encoding is not None:
                in_thread = len(body) >= THREAD_FROM_BYTES
                work = asyncio.to_thread(compress, body, encoding) if in_thread else None
                body = await work if work else compress(body, encoding)
                fields += [(b"content-encoding", encoding.encode()), (b"vary", b"accept-encoding")]
        fields.append((b"content-length", b"%d" % len(body)))
        await self.send({"type": "http.response.start", "status": status, "headers": fields})
        await self.send({"type": "http.response.body", "body": body})

    async def send(self, message: Message) -> None:
        """Sends a message of ASGI; the first one gets the request's id.

        While the server drains, it also closes the connection. A client that kept it would lose the
        request that it sends at the moment of the shutdown.
        """
        if message["type"] == "http.response.start":
            self.status = message["status"]
            fields = [*message.get("headers", ()), (b"x-request-id", self.request_id.encode())]
            if self._closing or self._draining():
                self._closing = True
                fields.append((b"connection", b"close"))
            elif self._unread and not self._is_kept():
                self._closing = True
            message["headers"] = fields
        elif (
            self._closing
            and self._unread
            and not self._expecting
            and not message.get("more_body", False)
        ):
            # An ASGI server closes the connection after the last message, so it comes later.
            await self._send({**message, "more_body": True})
            await self._drop_body()
            message = {"type": "http.response.body", "body": b""}
        await self._send(message)

    def _is_kept(self) -> bool:
        """Whether the client goes on with the connection after the answer."""
        tokens = self.headers.get(b"connection", b"").lower().split(b",")
        return self.scope.get("http_version") != "1.0" and b"close" not in map(bytes.strip, tokens)

    async def _drop_body(self) -> None:
        """Reads the rest of the body, until the client has sent it or is gone, or for a while."""
        now = asyncio.get_running_loop().time
        end, size, more = now() + _LINGER_S, 0, True
        with contextlib.suppress(TimeoutError):  # the client has had its time
            async with asyncio.timeout_at(end) as timeout:
                while more and size < _LINGER_BYTES:
                    timeout.reschedule(min(end, now() + _LINGER_IDLE_S))
                    message = await self.receive()
                    size += len(message.get("body", b""))
                    more = message.get("more_body", False)  # absent if the client is gone

    async def refuse(self, error: RequestError) -> None:
        """Sends the response for an error of the request."""
        headers: Headers = []
        if isinstance(error, QueueFull):
            headers.append((b"retry-after", b"%d" % max(1, math.ceil(error.retry_after_s))))
        elif isinstance(error, NotReady):
            headers.append((b"retry-after", b"%d" % _NOT_READY_S))
        await self.refuse_with(error.status, str(error), headers=headers)

    async def refuse_with(
        self, status: int, sentence: str, *, headers: Iterable[tuple[bytes, bytes]] = ()
    ) -> None:
        """Sends the response for an error: `{"error": sentence}`.

        Args:
            status: Status of the response.
            sentence: The message.
            headers: Further headers.
        """
        # A message may quote what came, so half of a surrogate pair must not fail here.
        text = sentence.encode(errors="replace").decode()
        await self.respond(status, orjson.dumps({"error": text}), headers=headers)


def internal_error(request_id: str) -> str:
    """Returns the sentence for an error of ours: an id, and no internals."""
    return (
        "the server must answer this request, got an error of its own; tell its operator the "
        f"request id {request_id}"
    )


def json_length(headers: dict[bytes, bytes], size: int) -> int | None:
    """Returns the value of Inference-Header-Content-Length, or None without the header.

    Args:
        headers: Headers of the request.
        size: Size of its body, decompressed.

    Raises:
        RequestError: It is no number, 0, or larger than the body.
    """
    value = headers.get(b"inference-header-content-length")
    if value is None:
        return None
    length = _length(value, "Inference-Header-Content-Length")
    if not 0 < length <= size:
        raise RequestError(
            f"Inference-Header-Content-Length must be from 1 to the body's {size} bytes, got "
            f"{length}; send the length of the JSON document that the body begins with"
        )
    return length


def _length(value: bytes, name: str) -> int:
    value = value.strip()
    # isdigit of bytes knows ASCII alone; 18 digits are more than any memory.
    if not value.isdigit() or len(value) > 18:
        raise RequestError(
            f"{name} must be a decimal number, got {value[:40].decode('latin-1')!r}; send the "
            "number of bytes"
        )
    return int(value)


def _too_large(received: str, limit: int) -> TooLarge:
    return TooLarge(
        f"a body must have at most {limit} bytes, got {received}; send fewer rows, or raise "
        "max_body of the server"
    )
