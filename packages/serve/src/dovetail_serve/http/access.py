# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Request ids, and one line of log for each response."""

import itertools
import json
import logging
import re
import secrets
from typing import Literal

from dovetail_serve.http.exchange import Exchange

AccessLog = Literal["text", "json"]

LOGGER = logging.getLogger("dovetail_serve.access")
# What is echoed into a header and a log: printable ASCII without spaces and quotes.
_REQUEST_ID = re.compile(rb"[A-Za-z0-9_\-.:/+=@]{1,128}")


class RequestIds:
    """Ids for requests: the client's own if it sent a sensible one, or new ones."""

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(6)
        self._numbers = itertools.count(1)

    def choose(self, sent: bytes | None) -> str:
        """Returns the value of X-Request-Id, or a new id without a usable one.

        An id of more than 128 characters, or with others than letters, digits and "_-.:/+=@", is
        replaced, because it is written to logs.
        """
        if sent is not None and _REQUEST_ID.fullmatch(sent):
            return sent.decode()
        return f"{self._prefix}-{next(self._numbers)}"


def log_access(style: AccessLog, exchange: Exchange, seconds: float) -> None:
    """Logs a response at level INFO.

    Args:
        style: "text" for `key=value`, "json" for an object.
        exchange: The request. Status 499 stands for a client gone away.
        seconds: From its headers to its response.
    """
    scope = exchange.scope
    client = scope.get("client")
    fields = {
        "request_id": exchange.request_id,
        "client": client[0] if client else "-",
        "method": scope["method"],
        "path": scope["path"],
        "status": exchange.status or 499,
        "microseconds": round(seconds * 1e6),
    }
    _log(style, fields)


def log_refusal(style: AccessLog, request_id: str, client: str, status: int) -> None:
    """Logs a request that its connection refused before it was read.

    Args:
        style: As for `log_access`.
        request_id: A new id, since the client's was not read.
        client: Its address.
        status: Status of the answer.
    """
    fields = {"request_id": request_id, "client": client, "method": "-", "path": "-"}
    _log(style, {**fields, "status": status, "microseconds": 0})


def _log(style: AccessLog, fields: dict[str, str | int]) -> None:
    if style == "json":
        LOGGER.info("%s", json.dumps(fields))
        return
    # A path may hold line breaks once it is decoded; as JSON it cannot forge a line.
    texts = {**fields, "path": json.dumps(fields["path"])}
    LOGGER.info("%s", " ".join(f"{name}={value}" for name, value in texts.items()))
