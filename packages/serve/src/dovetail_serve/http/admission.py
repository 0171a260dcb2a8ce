# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Questions to the queue before a body is read, and again before it is decoded.

Decoding a JSON image takes milliseconds, as long as many models run. A server that decodes what it
then refuses answers fewer requests the more come. Priority and timeout are parameters of the body,
so the queue is first asked without them: whether it is full, which holds for all levels alike. A
client may send them in headers too, and is then refused early for them. The time of the header
counts from the arrival of the head.

Before decoding, the server's default deadline is known to hold if the body has no timeout.
"""

import math
import time
from collections.abc import Mapping

from dovetail_serve.errors import RequestError
from dovetail_serve.http.parameters import Options
from dovetail_serve.serving.server import Server

TIMEOUT, PRIORITY = "inference-timeout-us", "inference-priority"
# More digits than those of an unsigned integer of 64 bits are refused unread.
_MAX_DIGITS = 20


class Admission:
    """The admission of one request.

    Args:
        server: Runs the models.
        asked: Name of the model, and a version or a label of it, or None for the latest.
        headers: Headers of the request, with names in lower case.

    Raises:
        RequestError: A header is no number.
    """

    __slots__ = ("_asked", "_end", "_priority", "_server", "_timeout_us")

    def __init__(
        self, server: Server, asked: tuple[str, str | None], headers: Mapping[bytes, bytes]
    ) -> None:
        self._server, self._asked = server, asked
        self._priority = _number(headers, PRIORITY)
        self._timeout_us = _number(headers, TIMEOUT) or None  # 0: none, as in the body
        self._end = time.perf_counter() + (self._timeout_us or 0) * 1e-6

    def ask(self) -> None:
        """Raises the error of `Server.admit` for what the headers say."""
        self._ask(math.inf if self._timeout_us is None else self._left_s())

    def ask_before_decoding(self, body: bytes) -> None:
        """Raises the error of `Server.admit` for the default deadline, if that one holds.

        It does unless the body may have a timeout, whose name may be written with escapes.
        """
        if self._timeout_us is None and b'"timeout"' not in body and b"\\" not in body:
            self._ask(None)

    def _ask(self, deadline_s: float | None) -> None:
        name, version = self._asked
        self._server.admit(
            name, version=version, priority=self._priority or 0, deadline_s=deadline_s
        )

    def merge(self, options: Options) -> Options:
        """Returns the options of the body with those of the headers.

        Raises:
            RequestError: Both have one, and they differ.
        """
        if self._priority is not None:
            if options.priority is not None:
                _check_same(PRIORITY, self._priority, "priority", options.priority)
            options = options._replace(priority=self._priority)
        if self._timeout_us is not None:
            if options.deadline_s is not None:
                timeout_us = round(options.deadline_s * 1e6)
                _check_same(TIMEOUT, self._timeout_us, "timeout", timeout_us)
            options = options._replace(deadline_s=self._left_s())
        return options

    def _left_s(self) -> float:
        return self._end - time.perf_counter()


def _number(headers: Mapping[bytes, bytes], name: str) -> int | None:
    value = headers.get(name.encode())
    if value is None:
        return None
    if not value.isdigit() or len(value) > _MAX_DIGITS:
        raise RequestError(
            f"{name} must be a decimal number, got {value[:40].decode('latin-1')!r}; send "
            f"{name}: 1, or leave it out"
        )
    return int(value)


def _check_same(header: str, value: int, parameter: str, other: int) -> None:
    if value != other:
        raise RequestError(
            f"the header {header} and the parameter {parameter!r} must be equal, got {value} and "
            f"{other}; send one of them"
        )
