# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Refusals in the form of OpenAI's API: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from dovetail_infer.completion import Completion, QueueFull


class ApiError(Exception):
    """A request that gets an error for an answer.

    Args:
        message: What must hold, what came, what to send instead.
        param: The field that is wrong. None: no field is.
        status: Status of the response.
        code: A word for programs, such as "context_length_exceeded".
        retry_after_s: Seconds after which the same request may succeed. None: it is not known.
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        status: int = 400,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code
        self.headers = {}
        if retry_after_s is not None:
            self.headers["retry-after"] = str(max(1, math.ceil(retry_after_s)))
        if status == 401:
            self.headers["www-authenticate"] = "Bearer"

    def body(self) -> dict[str, Any]:
        """Returns the object to send."""
        kinds = {429: "rate_limit_error", 500: "server_error", 503: "server_error"}
        kind = kinds.get(self.status, "invalid_request_error")
        values = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": values}


def of_engine(error: Exception, fields: Iterable[str]) -> ApiError:
    """Returns the answer to an error that the engine raised for a request.

    Args:
        error: QueueFull; or ValueError or TypeError, whose first word may be a field; or the
            RuntimeError of a closed engine.
        fields: Fields of the request.
    """
    if isinstance(error, QueueFull):
        message = "the server must have a place in its queue, got one request more; send it later"
        return ApiError(
            message, status=429, code="rate_limit_exceeded", retry_after_s=error.retry_after_s
        )
    if isinstance(error, ValueError | TypeError):
        first = str(error).partition(" ")[0]
        return ApiError(str(error), param=first if first in set(fields) else None)
    return stopping()


def of_completion(completion: Completion) -> ApiError | None:
    """Returns the error of a completion that has no answer. None: it has one."""
    if completion.finish_reason in ("stop", "length"):
        return None
    if completion.finish_reason == "abort":
        return stopping()
    message = f"the model must not fail, got: {completion.error}; the server's log says more"
    return ApiError(message, status=500, code="failed_step")


def failed() -> ApiError:
    """Returns the answer to an error of the server itself."""
    return ApiError(
        "the server must not fail, got an error of its own; its log says more", status=500
    )


def stopping() -> ApiError:
    """Returns the answer of a server that is about to end."""
    return ApiError(
        "the server must be running, got a request while it stops; send it to another one",
        status=503,
        code="unavailable",
        retry_after_s=1.0,
    )
