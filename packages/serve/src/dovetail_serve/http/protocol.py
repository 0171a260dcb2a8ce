# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Limits of a connection: sizes of heads, numbers of connections, and time.

uvicorn parses with httptools, which refuses ambiguous lengths, line breaks without a carriage
return, folded headers and control characters. It has no limits of its own. This subclass of
uvicorn's protocol adds them, and refuses what httptools lets pass: trailers (uvicorn would add them
to the headers), a missing or second Host, transfer codings other than chunked, HTTP other than 1.0
and 1.1.

Timers run only while a request is incomplete. One that arrives in a single read costs none.

`Places` says which connections stay when there are too many.

A refused connection is not closed at once. The kernel answers bytes that nobody has read with a
reset, and a client that is still sending may then lose the refusal. So they are read and dropped
for a while (RFC 9112, section 9.6).
"""

import asyncio
import socket
import struct
import sys
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, ClassVar, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from dovetail_serve.http.exchange import GONE
from dovetail_serve.http.limits import DEFAULT_LIMITS, Limits
from dovetail_serve.http.places import Places, is_probe, too_many

# Bounds of reading on after a refusal. A connection beyond the limit still takes a descriptor.
_LINGER_S, _LINGER_BYTES = 2.0, 256 << 20
# Of the struct tcp_info of Linux: segments on their way, bytes acknowledged, bytes not sent yet.
_TCP_INFO = struct.Struct("=24xI92xQ16xI")
# Phases of a connection.
_IDLE, _HEAD, _BODY = range(3)


class _Refused(Exception):
    """Raised inside of the parser's callbacks, which end its work."""


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits. `limited` makes the class for a server."""

    limits = DEFAULT_LIMITS
    # Connections that wait for their clients to read a refusal.
    lingering: ClassVar[set["LimitedProtocol"]] = set()
    places: ClassVar[Places]
    # As for `limited`.
    refuse: ClassVar[Callable[[int, str, str], bytes]]
    is_probe: ClassVar[Callable[[bytes], bool]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # A new connection is timed like a head of which no byte has come.
        self._phase, self._timed, self._is_new = _HEAD, _IDLE, True
        self._headed = False  # whether the newest request has a cycle
        self._messages = self._head_bytes = self._head_count = 0
        self._refusal: tuple[int, str] | None = None
        self._closing = False
        self._timer: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._dropped = 0
        # The request that is being answered; `cycle` is the newest one of a pipeline.
        self._running: Any = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.places.enter(self)
        self._time_phase()

    @property
    def idle(self) -> bool:
        """Whether nothing of a request has come."""
        return self._phase == _IDLE or self._is_new

    def give_way(self) -> None:
        """Closes this connection without a request for a new one."""
        if self.idle:
            self._closing = True
            self._close()
        else:
            self._close_with(503, too_many(self.limits.connections))

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._timer, self._stalled):
            if timer is not None:
                timer.cancel()
        self._unset_keepalive_if_required()  # uvicorn leaves it after a reset
        self.lingering.discard(self)
        self.places.leave(self)
        if self._running is not None and not self._running.response_complete:
            # uvicorn tells the newest request alone.
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)

    def eof_received(self) -> None:
        self._time_sending()  # the transport closes itself now

    def data_received(self, data: bytes) -> None:
        if self._closing:
            self._dropped += len(data)
            if self._dropped > _LINGER_BYTES:
                self._close()
            return
        phase, messages, self._is_new = self._phase, self._messages, False
        super().data_received(data)
        if self._closing or self.transport.is_closing():
            return
        if messages == self._messages:
            if self._phase == _IDLE:  # line breaks before a request
                self._phase = _HEAD
            if phase == self._phase == _HEAD:
                self._head_bytes += len(data)
                if self._head_bytes > self.limits.head_bytes:
                    self._refusal = self._head_too_large(self._head_bytes)
                    self.send_400_response("")
                    return
        if self._phase != self._timed:
            self._time_phase()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._phase, self._head_bytes, self._headed = _HEAD, 0, False

    def on_headers_complete(self) -> None:
        self._phase, self._head_count = _BODY, len(self.headers)
        self._refusal = self._check_head()
        has_place = self._refusal is None and self.places.find(self)
        if self._refusal is None and not has_place and not type(self).is_probe(self.url):
            self._refusal = (503, too_many(self.limits.connections))
        if self._refusal is not None:
            self._phase = _HEAD
            raise _Refused
        self.places.work(self)
        super().on_headers_complete()
        self._headed, scope = True, cast(dict[str, Any], self.scope)
        scope[GONE] = lambda cycle=self.cycle: cycle.disconnected
        if not self.pipeline:
            self._running = self.cycle
        upgrades = self.parser is not None and self.parser.should_upgrade()
        if upgrades or not has_place:
            # We decline an upgrade by an answer. httptools takes what follows for the other
            # protocol, so it is the last one, and says so. (uvicorn below 0.53 closes without a
            # word.)
            closing = (b"connection", b"close")
            self.cycle.default_headers = [*self.cycle.default_headers, closing]

    def on_message_complete(self) -> None:
        if len(self.headers) != self._head_count:
            self._refusal = (
                400,
                "a request must have its headers before its body, got trailers; send them in front",
            )
            raise _Refused
        self._phase, self._messages = _IDLE, self._messages + 1
        super().on_message_complete()
        if self.cycle.response_complete and not self.transport.is_closing():
            # Refused before its body came. uvicorn began to count the idle time with the answer.
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.limits.keep_alive_s, self.timeout_keep_alive_handler
            )
            self.places.wait(self)

    def on_response_complete(self) -> None:
        if self.pipeline:
            self._running = self.pipeline[-1][0]
        super().on_response_complete()
        if self.transport.is_closing():
            self._time_sending()
        elif self._phase != _BODY and not self._is_answering():
            self.places.wait(self)

    def send_400_response(self, msg: str) -> None:
        """Refuses what the parser or a limit has refused, and closes the connection."""
        status, sentence = self._refusal or (
            400,
            "a request must be well-formed HTTP/1.1, got one that is not; see RFC 9112",
        )
        if self._closing:
            return
        before = self._is_answering()
        if self._phase == _BODY and self._headed and not before:
            # This request was answered before its body came. Another answer would be taken for
            # that to the next one.
            self._closing = True
            self._linger()
            return
        if self._phase != _BODY and before:
            # An earlier request is being answered. Its answer must not be taken for this one.
            self._closing = True
            self.cycle.keep_alive = False
            return
        if self._phase == _BODY and before:
            # The task of this request must not wait for the rest.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.pipeline or self.cycle.response_started:
                self._closing = True
                self._close()
                return
        self._close_with(status, sentence)

    def _is_answering(self) -> bool:
        """Whether the newest request has no complete answer yet."""
        return self.cycle is not None and not self.cycle.response_complete

    def pause_writing(self) -> None:
        super().pause_writing()
        self._time_sending()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None and not self.transport.is_closing():
            self._stalled.cancel()
            self._stalled = None

    def timeout_keep_alive_handler(self, before: tuple[int, int] | None = None) -> None:
        """Ends an idle connection, or one whose client takes none of the last answer.

        uvicorn's timer begins with the last write, but a large answer then is on its way still.
        `close` would give it 30 seconds with TLS, and all the time there is without.
        """
        progress, pending = self._progress()
        if not pending:
            super().timeout_keep_alive_handler()
        elif progress != before:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.limits.send_s, self.timeout_keep_alive_handler, progress
            )
        else:
            self.transport.abort()

    def _close(self) -> None:
        """Closes the connection once its client has taken what is pending, or takes no more."""
        self.places.leave(self)
        self._time_sending()
        self.transport.close()

    def _time_sending(self) -> None:
        """Starts the timer of what is pending, unless it runs. `close` has none of its own."""
        if self._stalled is None:
            self._look_at_sending()

    def _look_at_sending(self, before: tuple[int, int] | None = None) -> None:
        """Ends a connection whose client has taken nothing since `before`."""
        progress, _ = self._progress()
        if progress != before:
            self._stalled = self.loop.call_later(
                self.limits.send_s, self._look_at_sending, progress
            )
        else:
            self.transport.abort()

    def _progress(self) -> tuple[tuple[int, int], bool]:
        """Returns numbers that change as the client takes bytes, and whether some are pending.

        Our buffer alone is too coarse. The kernel takes megabytes of it at a time, and a slow
        client needs a minute for those. Linux counts the bytes that the client has acknowledged.
        """
        size = self.transport.get_write_buffer_size()
        if sys.platform != "linux":
            return (size, 0), size > 0
        connection = self.transport.get_extra_info("socket")
        information = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        unacknowledged, acknowledged, unsent = _TCP_INFO.unpack(information)
        return (size, acknowledged), size + unacknowledged + unsent > 0

    def _check_head(self) -> tuple[int, str] | None:
        """Returns status and sentence for a head that is refused."""
        size, hosts, coding = len(self.url), 0, None
        for name, value in self.headers:
            size += len(name) + len(value)
            if name == b"host":
                hosts += 1
            elif name == b"transfer-encoding":
                coding = value
        assert self.parser is not None, "it calls this method"
        version = self.parser.get_http_version()
        if size > self.limits.head_bytes:
            return self._head_too_large(size)
        if len(self.headers) > self.limits.headers:
            return 431, (
                f"a request must have at most {self.limits.headers} headers, got "
                f"{len(self.headers)}; send fewer"
            )
        if version not in ("1.0", "1.1"):
            return 505, f"the version must be HTTP/1.1, got HTTP/{version}; send HTTP/1.1"
        if hosts > 1 or (not hosts and version == "1.1"):
            return 400, f"a request must have one Host, got {hosts}; send the header once"
        if coding is not None and (version == "1.0" or coding.strip().lower() != b"chunked"):
            return 501, (
                f"Transfer-Encoding must be chunked and HTTP 1.1, got {coding[:40]!r} and HTTP "
                f"{version}; send Content-Length, and compress with Content-Encoding"
            )
        if self.parser.should_upgrade() and (coding or self._has_length()):
            # httptools would take the body for the other protocol.
            return 400, (
                "a request with a body must not offer another protocol, got Upgrade; send it "
                "without that header"
            )
        return None

    def _has_length(self) -> bool:
        return any(name == b"content-length" for name, _ in self.headers)

    def _head_too_large(self, size: int) -> tuple[int, str]:
        return 431, (
            f"the head of a request must have at most {self.limits.head_bytes} bytes, got {size}; "
            "send fewer or shorter headers"
        )

    def _close_with(self, status: int, sentence: str) -> None:
        self._closing = True
        body = type(self).refuse(status, sentence, self.client[0] if self.client else "-")
        retry = b"retry-after: 1\r\n" if status == 503 else b""
        head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-length: {len(body)}\r\n"
        fields = b"content-type: application/json\r\nconnection: close\r\n\r\n"
        self.transport.write(head.encode() + retry + fields + body)
        self._linger()

    def _linger(self) -> None:
        """Closes the connection once its client has, or after a while."""
        self.places.leave(self)
        if len(self.lingering) >= self.limits.connections:
            self._close()
            return
        self.lingering.add(self)
        if self.transport.can_write_eof():  # not with TLS
            self.transport.write_eof()
        self.flow.resume_reading()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(_LINGER_S, self._close)

    def _time_phase(self) -> None:
        """Starts the timer of the phase that the connection is in, in place of another."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timed = self._phase
        if self._phase != _IDLE:
            seconds = self.limits.head_s if self._phase == _HEAD else self.limits.body_s
            self._timer = self.loop.call_later(seconds, self._late, seconds)

    def _late(self, seconds: float) -> None:
        if self.transport.is_closing():
            return
        if self.flow.read_paused:
            # A pipelined request waits for the answer before it. That is not the client's doing.
            self._time_phase()
            return
        phase = "head" if self._phase == _HEAD else "body"
        self._refusal = (
            408,
            f"the {phase} of a request must arrive within {seconds:g} seconds, got a part of it; "
            "send it faster",
        )
        self.send_400_response("")


def limited(
    limits: Limits,
    refuse: Callable[[int, str, str], bytes],
    is_probe: Callable[[bytes], bool] = is_probe,
) -> type[LimitedProtocol]:
    """Returns the protocol class of a server.

    Args:
        limits: Its limits.
        refuse: Called for each refusal, which no application sees: its status, its sentence and the
            client's address. Returns the body of the answer, JSON.
        is_probe: Returns whether the target of a request asks for health, which has no limit of
            connections.
    """
    members = {
        "limits": limits,
        "lingering": set(),
        "places": Places(limits.connections),
        "refuse": staticmethod(refuse),
        "is_probe": staticmethod(is_probe),
    }
    return type("LimitedProtocol", (LimitedProtocol,), members)
