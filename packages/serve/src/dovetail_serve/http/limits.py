# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`Limits`: those of the connections of an HTTP server."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of the connections of an HTTP server.

    Args:
        head_bytes: Largest size of the target and the headers of a request together.
        headers: Largest number of headers.
        connections: Largest number of open connections. One more closes the one that has been idle
            for longest, or else the one whose head is incomplete for longest. If all have requests,
            the new one is answered 503 and closed, unless it asks for health. Refused connections
            do not count. As many again of them may stay open for two seconds, so that their clients
            can read the answer.
        head_s: Time for the head of a request, from its first byte; or from the connection.
        body_s: Time for a body.
        send_s: Time that a client may take none of a response that waits for it.
        keep_alive_s: Time that a connection may be idle between two requests.

    Raises:
        ValueError: A limit is not above 0.
    """

    head_bytes: int = 16 << 10
    headers: int = 100
    connections: int = 1024
    head_s: float = 10.0
    body_s: float = 60.0
    send_s: float = 60.0
    keep_alive_s: float = 60.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise ValueError(
                    f"limits must be above 0, got {field.name}={value}; leave it out for "
                    f"{field.default}"
                )


DEFAULT_LIMITS = Limits()
