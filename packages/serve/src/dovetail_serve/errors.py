# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Errors for a caller to catch, with the exit code of a command and the status of a response.

Other wrong arguments raise ValueError or TypeError.
"""


class BundleError(ValueError):
    """A bundle that cannot be used here: another format, a newer producer, a missing platform."""

    exit_code = 3


class MemoryExceeded(BundleError):
    """A bundle whose weights do not fit in the memory that weights may have."""


class IntegrityError(BundleError):
    """A bundle whose bytes differ from its digests. The message names the file and the array.

    Args:
        message: Text of the error.
        file: Name of the file within the bundle; an attribute.
        array: Name of the array, or None if the difference is outside of arrays;
            an attribute.
    """

    def __init__(self, message: str, *, file: str, array: str | None = None) -> None:
        super().__init__(message)
        self.file, self.array = file, array


class RequestError(ValueError):
    """A request that cannot be answered as it was sent.

    Attributes:
        status: Status of the HTTP response.
        grpc_status: Name of the status of a gRPC response.
    """

    status = 400
    grpc_status = "INVALID_ARGUMENT"


class ModelNotFound(RequestError):
    """No model or version of this name."""

    status, grpc_status = 404, "NOT_FOUND"


class NotReady(RequestError):
    """The model is loading, failed to load, or was unloaded; or the server is shutting down."""

    status, grpc_status = 503, "UNAVAILABLE"


class QueueFull(RequestError):
    """The queue holds as many requests as it may.

    Attributes:
        retry_after_s: Seconds until the queue is expected to have room.
    """

    status, grpc_status = 429, "RESOURCE_EXHAUSTED"

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DeadlineExceeded(RequestError):
    """The deadline passed before the result was there. Work that has not begun is dropped."""

    status, grpc_status = 504, "DEADLINE_EXCEEDED"


class TooLarge(RequestError):
    """A body above the server's limit."""

    status, grpc_status = 413, "RESOURCE_EXHAUSTED"


class ExecutionError(RequestError):
    """The model failed on valid inputs, or returned values that the server refuses."""

    status, grpc_status = 500, "INTERNAL"
