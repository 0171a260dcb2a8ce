# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The status of a failed call: its code, its message and its trailing metadata."""

import dataclasses
import logging
import math
import uuid
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from dovetail_serve.errors import QueueFull, RequestError

_log = logging.getLogger("dovetail_serve")
# The message travels in a header, percent-encoded in up to three times as many bytes. Clients
# refuse headers of more than 8 KiB in sum.
_MAX_MESSAGE_BYTES = 2000


class Refusal(Exception):
    """A call refused for another reason than its model or its tensors.

    Attributes:
        code: Status code of the response.
    """

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclasses.dataclass(frozen=True, kw_only=True)
class Status:
    """The end of a failed call.

    Attributes:
        code: Status code.
        message: Reason, in at most 2,000 bytes.
        metadata: Trailing metadata.
    """

    code: grpc.StatusCode
    message: str
    metadata: tuple[tuple[str, str], ...] = ()


def status(error: Exception, method: str) -> Status:
    """Returns the status for an error. Errors of the server itself are logged under an id."""
    if isinstance(error, QueueFull):
        # The second is honoured by gRPC's own retry policy.
        metadata = (
            ("retry-after", str(max(1, math.ceil(error.retry_after_s)))),
            ("grpc-retry-pushback-ms", str(math.ceil(error.retry_after_s * 1e3))),
        )
        return Status(
            code=grpc.StatusCode.RESOURCE_EXHAUSTED, message=_short(error), metadata=metadata
        )
    if isinstance(error, RequestError):
        return Status(code=grpc.StatusCode[error.grpc_status], message=_short(error))
    if isinstance(error, Refusal):
        return Status(code=error.code, message=_short(error))
    if isinstance(error, DecodeError):
        return Status(
            code=grpc.StatusCode.INVALID_ARGUMENT,
            message=f"the message must be the request of {method}, got bytes that are not; send "
            "it with a client of the Open Inference Protocol",
        )
    request_id = uuid.uuid4().hex
    _log.error("%s failed request_id=%s", method, request_id, exc_info=error)
    return Status(
        code=grpc.StatusCode.INTERNAL,
        message=f"the server failed; its log has the reason under request_id={request_id}",
    )


async def abort(context: Any, error: Exception, method: str) -> None:
    """Ends a call with the status of an error.

    Args:
        context: The call of `grpc.aio`.
        error: Reason of the end.
        method: Name of the method, for messages.

    Raises:
        Exception: gRPC's own, which must leave the handler.
    """
    end = status(error, method)
    await context.abort(end.code, end.message, end.metadata)


def _short(error: Exception) -> str:
    text = str(error)
    encoded = text.encode(errors="replace")
    if len(encoded) <= _MAX_MESSAGE_BYTES:
        return text
    return encoded[: _MAX_MESSAGE_BYTES - 3].decode(errors="ignore") + "..."
